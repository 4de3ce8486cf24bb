"""A disk that fails, lies or does not answer costs misses, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cached import answered, assert_restored, cached, found, states, tier_pages, wait_states, wait_written
from scripted import Instance
from support.holds import SSD_FAULT, SSD_FORGET
from support.manager import Manager
from support.wait import wait_until
from tiered import PAGES, SLOT_BYTES, ask, ready, store

from orbitkv import _native as native

Connect = Callable[..., Instance]


@pytest.fixture
def manager(new_manager: Callable[..., Manager], tmp_path: Path) -> Manager:
    return cached(new_manager, tmp_path / "one")


@pytest.fixture
def instance(manager: Manager, new_instance: Connect) -> Instance:
    return new_instance(manager)


@pytest.mark.parametrize("error", ["eio", "short"])
def test_a_page_that_cannot_be_read_is_a_miss_and_is_not_asked_for_again(
    manager: Manager, instance: Instance, error: str
) -> None:
    store(manager, instance, "a")
    store(manager, instance, "b")
    with manager.holds.switched(SSD_FAULT, f"one read {error} 1"):
        query = ask(instance, "a")
        assert answered(query) == 0, "its first page"
        query.release()
    metrics = manager.metrics()
    assert metrics['orbitkv_ssd_errors_total{direction="read"}'] == 1
    assert metrics["orbitkv_tier_read_failures_total"] == 1
    assert tier_pages(manager) == 2 * PAGES - 1
    assert instance.found("a", PAGES) == 0, "the disk is well again, but that page is not trusted"
    assert_restored(instance, "b")
    # Computed and saved again, it is good again.
    assert instance.save_what_fits("a", 1) == [native.GRANT_SLOTS]
    wait_until(lambda: instance.found("a", PAGES) == PAGES, "it is found")
    assert_restored(instance, "a")
    assert states(manager) == ["serving"]
    manager.assert_drained()


@pytest.mark.parametrize("error", ["eio", "erofs"])
def test_a_failed_write_ends_writing_and_failed_reads_end_the_rest(
    manager: Manager, instance: Instance, error: str
) -> None:
    for name in ("a", "b", "c"):
        store(manager, instance, name)
    wait_states(manager, "serving")
    with manager.holds.switched(SSD_FAULT, f"one write {error} 1"):
        instance.save("d", PAGES)
        wait_states(manager, "read_only")
    assert manager.metrics()['orbitkv_ssd_errors_total{direction="write"}'] == 1
    wait_written(manager)
    before = tier_pages(manager)
    instance.save("e", PAGES)
    assert_restored(instance, "e")
    assert_restored(instance, "a")
    assert tier_pages(manager) == before, "a disk that writes again is not trusted either"
    manager.drop_memory()
    with manager.holds.switched(SSD_FAULT, "one read eio"):
        for name in ("b", "c"):
            query = ask(instance, name)
            assert answered(query) == 0
            query.release()
        wait_states(manager, "off")
    assert instance.found("a", PAGES) == 0
    instance.save("f", PAGES)
    assert_restored(instance, "f")
    assert "SSD cache is off" in manager.log()
    manager.assert_drained()


def test_one_directory_that_does_not_answer_takes_nobody_with_it(
    new_manager: Callable[..., Manager], new_instance: Connect, tmp_path: Path
) -> None:
    manager = cached(new_manager, tmp_path / "one", tmp_path / "two")
    instance = new_instance(manager)
    store(manager, instance, "a")
    assert all(row["written_bytes"] > 0 for row in manager.status()["ssd"]), "control: it is in both"
    with manager.holds.switched(SSD_FAULT, "one read stuck;one write stuck"):
        query = ask(instance, "a")
        hurried = ask(instance, "a", deadline_ms=200)
        assert answered(hurried) < PAGES
        hurried.release()
        assert query.poll() == native.PENDING
        # Nobody else waits.
        instance.save("b", PAGES)
        assert_restored(instance, "b")
        # Nothing but the silence of the disk ends this wait.
        assert answered(query) < PAGES
        query.release()
        wait_states(manager, "stuck", "serving")
        reserved = manager.status()["query"]["reserved_bytes"]
        assert reserved >= SLOT_BYTES, "what is being read into is paid for"
        assert instance.found("a", PAGES) < PAGES, "who comes now does not wait either"
        store_on_the_other(manager, instance, "c")
        assert_restored(instance, "c")
        assert manager.status()["query"]["reserved_bytes"] >= SLOT_BYTES
    wait_states(manager, "serving", "serving")
    wait_written(manager)
    manager.assert_drained()
    store(manager, instance, "d")
    assert_restored(instance, "d")


def store_on_the_other(manager: Manager, instance: Instance, name: str) -> None:
    """Saves a chain whose pages all come to the directory that moves."""
    before = manager.status()["ssd"][1]["written_bytes"]
    tier_before = tier_pages(manager)
    instance.save(name, PAGES)
    wait_until(lambda: tier_pages(manager) >= tier_before + PAGES, f"{name} is written")
    assert manager.status()["ssd"][1]["written_bytes"] - before >= PAGES * SLOT_BYTES
    manager.drop_memory()


def test_a_stuck_read_is_a_miss_at_the_deadline_and_paid_for_until_it_ends(
    manager: Manager, instance: Instance
) -> None:
    store(manager, instance, "a")
    with manager.holds.switched(SSD_FAULT, "one read stuck"):
        query = ask(instance, "a", deadline_ms=200)
        assert answered(query) == 0
        query.release()
        assert manager.status()["query"]["reserved_bytes"] == PAGES * SLOT_BYTES
        assert manager.counters()["timed_out"] == 1
        instance.save("b", PAGES)
        assert_restored(instance, "b")
    manager.assert_drained()
    assert_restored(instance, "a")


def test_a_read_of_two_owners_goes_on_when_one_of_them_cancels(
    manager: Manager, instance: Instance, new_instance: Connect
) -> None:
    other = new_instance(manager)
    store(manager, instance, "a")
    with manager.holds.switched(SSD_FAULT, "one read slow=500"):
        one, two = ask(instance, "a"), ask(other, "a")
        wait_until(lambda: manager.counters()["coalesced_reads"] == PAGES, "both wait for the same reads")
        one.release()
        assert two.poll() == native.PENDING, "control: nothing has been read yet"
        ready(two)
    assert other.differing("a", PAGES) == list(range(PAGES)), "control"
    assert other.restore(two, PAGES) == []
    assert other.differing("a", PAGES) == []
    assert manager.counters()["read_pages"] == PAGES, "once for both"
    manager.assert_drained()


def test_a_reset_is_answered_when_the_disk_has_it(
    manager: Manager, instance: Instance, new_instance: Connect
) -> None:
    other = new_instance(manager, namespace="two")
    store(manager, instance, "a")
    store(manager, other, "b")
    manager.holds.hold(SSD_FORGET)
    reset = instance.scheduler.reset()
    manager.holds.wait_reached(SSD_FORGET)
    assert instance.found("a", PAGES) == 0, "memory has carried it out"
    assert not reset.poll()
    # It would be asked for again by whoever has asked for it.
    instance.close()
    manager.kill()
    found(manager.start())
    assert manager.counters()["found_pages"] == 2 * PAGES, "control: killed before it was recorded"
    for round_ in range(5):
        again = new_instance(manager)
        again.save(f"c{round_}", PAGES)
        wait_written(manager)
        assert again.scheduler.reset().wait(30_000_000)
        manager.kill()
        found(manager.start())
        assert manager.counters()["found_pages"] == PAGES, "what was reset is gone, and nothing else"


def test_a_reset_that_is_not_recorded_in_time_is_not_confirmed(manager: Manager, instance: Instance) -> None:
    store(manager, instance, "a")
    with manager.holds.held(SSD_FORGET):
        reset = instance.scheduler.reset()
        refused = 'orbitkv_frames_sent_total{kind="Refused"}'
        wait_until(lambda: manager.metrics().get(refused, 0) == 1, "it is answered all the same")
        assert not reset.poll()
        wait_states(manager, "stuck")
        instance.save("b", PAGES)
        assert_restored(instance, "b")
    wait_states(manager, "serving")
    assert manager.status()["ssd"][0]["recorded_resets"] == 1
