"""File systems that are full or have gone down, real ones: tmpfs, and ext4 on a loop device."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cached import (
    answered,
    assert_restored,
    cached,
    states,
    tier_pages,
    wait_states,
    wait_written,
)
from scripted import Instance
from support.manager import Manager
from support.wait import wait_until
from tiered import PAGES, ask, store

Connect = Callable[..., Instance]
MIB = 1 << 20
SIZE_MIB = 12
# _IOR('X', 125, __u32): the file system answers nothing but errors from then on.
FS_IOC_SHUTDOWN, WITHOUT_FLUSH = 0x8004_587D, 2


def run(*command: object) -> None:
    """Runs a command that this host may not have, or not allow: then the test is skipped, and says why."""
    words = [str(word) for word in command]
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is missing")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system of that type; where."""
    mounted: list[Path] = []

    def mount(kind: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("only root can mount")
        place = tmp_path / kind
        place.mkdir()
        if kind == "tmpfs":
            run("mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", place)
        else:
            image = tmp_path / "image"
            with image.open("wb") as file:
                file.truncate(SIZE_MIB * MIB)
            run("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", image)
            run("mount", "-o", "loop", image, place)
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def free_bytes(place: Path) -> int:
    """What can still be written there."""
    seen = os.statvfs(place)
    return seen.f_bavail * seen.f_frsize


def fill(place: Path) -> Path:
    """Somebody else takes all that is left."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MIB, 4096):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_full_file_system_keeps_what_it_has_and_takes_more_when_there_is_room(
    new_manager: Callable[..., Manager], new_instance: Connect, mount: Callable[[str], Path], kind: str
) -> None:
    place = mount(kind)
    manager = cached(new_manager, place / "ssd")
    instance = new_instance(manager)
    mode = manager.status()["ssd"][0]["mode"]
    assert kind == "tmpfs" or "O_DIRECT" in mode, mode
    filler = fill(place)
    assert free_bytes(place) < MIB, "control"
    instance.save("a", PAGES)
    wait_states(manager, "full")
    assert_restored(instance, "a")
    assert tier_pages(manager) == 0, "none of it has a place"

    filler.unlink()
    wait_states(manager, "serving")
    store(manager, instance, "b")
    assert_restored(instance, "b")

    # More than the file system takes, and far less than the capacity.
    for index in range(20):
        instance.save(f"c{index}", PAGES)
        wait_written(manager)
    assert free_bytes(place) < 2 * MIB, "control"
    assert manager.status()["ssd"][0]["evicted_pages"] > 0
    assert_last_restored(manager, instance, "c19")
    assert (manager.status()["ssd"][0]["mismatches"], states(manager)) == (0, ["serving"])
    assert manager.log().count("writes nothing for now") == 1, "it is said once"
    manager.assert_drained()


def assert_last_restored(manager: Manager, instance: Instance, name: str) -> None:
    """The newest chain is there, or its end was not written; what is there is right."""
    manager.assert_drained()
    manager.drop_memory()
    pages = instance.found(name, PAGES)
    assert pages > 0, f"{name}: {manager.status()['ssd']}"
    assert_restored(instance, name, pages)


def test_a_file_system_that_goes_down_leaves_the_others_at_work(
    new_manager: Callable[..., Manager], new_instance: Connect, mount: Callable[[str], Path], tmp_path: Path
) -> None:
    place = mount("ext4")
    manager = cached(new_manager, place / "ssd", tmp_path / "other", capacity="16mib")
    instance = new_instance(manager)
    for name in ("a", "b", "c", "d"):
        store(manager, instance, name)
    assert_restored(instance, "a")
    manager.drop_memory()
    wait_states(manager, "serving", "serving")

    descriptor = os.open(place, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
    except OSError as error:
        pytest.skip(f"this kernel's ext4 cannot be shut down: {error}")
    finally:
        os.close(descriptor)
    instance.save("e", PAGES)
    wait_states(manager, "read_only", "serving")
    # All that is saved from now on comes to the other one.
    wait_written(manager)
    before = tier_pages(manager)
    instance.save("f", PAGES)
    wait_until(lambda: tier_pages(manager) == before + PAGES, "f is written")
    manager.drop_memory()
    assert_restored(instance, "f")
    # And what was on the first one is a miss, page by page, until it is given up.
    lost = 0
    for name in ("a", "b", "c", "d"):
        query = ask(instance, name)
        lost += PAGES - answered(query)
        query.release()
    assert lost > 0
    assert manager.metrics()['orbitkv_ssd_errors_total{direction="read"}'] > 0
    instance.save("g", PAGES)
    assert_restored(instance, "g")
    manager.assert_drained()
