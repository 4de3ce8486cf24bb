"""What the cache directory takes is counted back, whichever way its pages go (case A-14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scripted import Instance
from ssd import (
    SEGMENT_BYTES,
    disk_bytes,
    leave_on_ssd,
    on_ssd,
    pages_of_tier,
    restored,
    save_each,
    segments,
    ssd,
    wait_found,
    wait_written,
)
from support.holds import SSD_WRITE
from support.manager import Manager
from support.wait import wait_until

# Eleven segments, which are nine tenths of it.
CAPACITY_BYTES = 6 << 20
# Of everything: a checkpoint and the one that replaces it, and the owner's block.
MARGIN_BYTES = 64 << 10
ROUNDS = 10
WRITES_AT_ONCE = 64


class World:
    """A manager, its directory, and an instance that fills it."""

    def __init__(
        self, new_manager: Callable[..., Manager], new_instance: Callable[..., Instance], directory: Path
    ) -> None:
        self.directory = directory
        self._new_manager, self._new_instance = new_manager, new_instance
        self.saved: list[str] = []
        self.start(CAPACITY_BYTES)

    def start(self, capacity_bytes: int) -> None:
        self.manager = on_ssd(self._new_manager, self.directory, str(capacity_bytes))
        self.instance = self._new_instance(self.manager)

    def stop(self) -> None:
        self.instance.close()
        assert self.manager.stop() == 0

    def save(self, count: int) -> None:
        names = [f"page-{len(self.saved) + index}" for index in range(count)]
        save_each(self.manager, self.instance, names)
        self.saved += names

    def fill(self) -> None:
        """To nine tenths."""
        while disk_bytes(self.directory) < CAPACITY_BYTES * 9 // 10:
            assert len(self.saved) < 4000, "it does not fill"
            self.save(8)

    def assert_counted(self) -> None:
        """What is counted is what can be restored, and what the file system says."""
        leave_on_ssd(self.manager, self.instance)
        assert len(restored(self.instance, self.saved)) == pages_of_tier(self.manager)

        def counted() -> bool:
            over = ssd(self.manager)["used_bytes"] - disk_bytes(self.directory)
            return 0 <= over <= MARGIN_BYTES

        # It is measured every few seconds.
        wait_until(counted, f"{ssd(self.manager)}, on the disk {disk_bytes(self.directory)}")


def by_reset(world: World) -> None:
    assert world.instance.scheduler.reset().wait(5_000_000)
    wait_until(lambda: pages_of_tier(world.manager) == 0, "all is forgotten")


def by_eviction(world: World) -> None:
    before = world.manager.status()["ssd"][0]["evicted_pages"]
    world.save(40)
    assert ssd(world.manager)["evicted_pages"] > before


def by_damage(world: World) -> None:
    leave_on_ssd(world.manager, world.instance)
    for path in segments(world.directory):
        content = bytearray(path.read_bytes())
        content[4096:] = bytes(byte ^ 0x10 for byte in content[4096:])
        path.write_bytes(content)
    assert restored(world.instance, world.saved) == []


def by_hand(world: World) -> None:
    world.stop()
    for path in segments(world.directory)[::2]:
        path.unlink()
    world.start(CAPACITY_BYTES)


def by_a_lower_cap(world: World) -> None:
    world.stop()
    world.start(CAPACITY_BYTES // 2)
    assert disk_bytes(world.directory) <= CAPACITY_BYTES // 2
    world.stop()
    world.start(CAPACITY_BYTES)


WAYS = (by_reset, by_hand, by_eviction, by_a_lower_cap, by_damage)


def test_case_a14_the_counter_follows_every_way_that_pages_go(
    new_manager: Callable[..., Manager], new_instance: Callable[..., Instance], tmp_path: Path
) -> None:
    world = World(new_manager, new_instance, tmp_path / "ssd")
    for number in range(ROUNDS):
        world.fill()
        before = pages_of_tier(world.manager)
        assert before > 0
        WAYS[number % len(WAYS)](world)
        world.assert_counted()
        # Written and read again, as if nothing had been.
        dropped = world.manager.counters()["dropped_writes"]
        world.save(8)
        leave_on_ssd(world.manager, world.instance)
        assert restored(world.instance, world.saved[-8:]) == world.saved[-8:]
        assert world.manager.counters()["dropped_writes"] == dropped
        assert disk_bytes(world.directory) <= CAPACITY_BYTES
    world.assert_counted()
    assert len(segments(world.directory)) > CAPACITY_BYTES // SEGMENT_BYTES // 2


def test_case_a14_a_write_that_is_dropped_is_counted(
    new_manager: Callable[..., Manager], new_instance: Callable[..., Instance], tmp_path: Path
) -> None:
    manager = on_ssd(new_manager, tmp_path / "ssd", "64mib")
    instance = new_instance(manager)
    names = [f"page-{index}" for index in range(2 * WRITES_AT_ONCE)]
    with manager.holds.held(SSD_WRITE):
        for name in names:
            instance.save(name, 1)
        metrics, counters = manager.metrics(), manager.counters()
        assert counters["dropped_writes"] > 0
        assert metrics["orbitkv_tier_write_drops_total"] == counters["dropped_writes"]
    wait_written(manager)
    wait_found(manager)
    # One that was dropped when it was saved may have been written when it was asked for.
    assert len(names) - counters["dropped_writes"] <= pages_of_tier(manager) < len(names)
    leave_on_ssd(manager, instance)
    assert len(restored(instance, names)) == pages_of_tier(manager)
