"""Pages of any size on any file system: what is listed was written, and the way it went is said (cases A-45,
A-46 and A-52)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mounts import mounted
from scripted import Instance
from ssd import leave_on_ssd, on_ssd, pages_of_tier, restored, save_each, ssd
from support.manager import Manager

PAGES = 20
# Bytes of a layer; a page has three. Pages of a block, one byte less, two more, and nothing even.
LAYER_BYTES = (1_365, 1_366, 5_462, 20_000)
IN_MEMORY = Path("/dev/shm")


class Place:
    """A cache directory on a file system, as the manager sees it and as others do."""

    def __init__(self, directory: Path, wrapper: tuple[str, ...] = (), outside: Path | None = None) -> None:
        self.directory, self.wrapper = directory, wrapper
        self.outside = outside or directory


@pytest.fixture(params=["disk", "memory", "overlay"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "disk":
        yield Place(tmp_path / "ssd")
    elif request.param == "memory":
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as directory:
            yield Place(Path(directory) / "ssd")
    else:
        yield overlay(tmp_path)


def overlay(tmp_path: Path) -> Place:
    """As in a container."""
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for path in (lower, upper, work, merged):
        path.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr"
    return Place(merged / "ssd", mounted("overlay", merged, options), upper / "ssd")


def assert_mode_is_said(manager: Manager) -> None:
    """In the status, the log and the metrics alike."""
    status, metrics = ssd(manager), manager.metrics()
    assert ("O_DIRECT" in status["mode"].split("(")[0]) == status["direct"]
    assert ("through the page cache" in status["mode"]) != status["direct"]
    assert metrics["orbitkv_ssd_page_cache"] == (0 if status["direct"] else 1)
    assert metrics[f'orbitkv_ssd_io{{engine="{status["engine"]}"}}'] == 1
    assert status["mode"] in manager.log()
    # What makes it less than it could be has a reason.
    assert status["direct"] or "page cache" in status["mode"].split("(", 1)[1]


def assert_clean(directory: Path, pages: int) -> None:
    """With the manager off: so many pages are listed, and every byte of them is good."""
    command = ["orbitkv", "verify-ssd", str(directory), "--json"]
    verified = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(verified.stdout)
    assert (verified.returncode, report["outcome"]) == (0, "clean"), report
    groups = [group for namespace in report["namespaces"] for group in namespace["groups"]]
    assert sum(group["pages"] for group in groups) == pages


def test_case_a45_pages_of_any_size_on_any_file_system(
    new_manager: Callable[..., Manager], new_instance: Callable[..., Instance], place: Place
) -> None:
    manager = on_ssd(new_manager, place.directory, "8mib", wrapper=place.wrapper)
    assert_mode_is_said(manager)
    written = {}
    for layer_bytes in LAYER_BYTES:
        instance = new_instance(manager, namespace=str(layer_bytes), layer_bytes=layer_bytes)
        names = written[layer_bytes] = [f"{layer_bytes}-{index}" for index in range(PAGES)]
        save_each(manager, instance, names)
        leave_on_ssd(manager, instance)
        assert restored(instance, names) == names
    status = ssd(manager)
    assert (status["read_errors"], status["write_errors"], status["mismatches"]) == (0, 0, 0)
    assert pages_of_tier(manager) == PAGES * len(LAYER_BYTES)
    assert_mode_is_said(manager)
    assert manager.stop() == 0
    assert_clean(place.outside, PAGES * len(LAYER_BYTES))
    # And the next manager finds what was listed.
    if place.wrapper:
        return
    again = on_ssd(new_manager, place.directory, "8mib")
    for layer_bytes, names in written.items():
        instance = new_instance(again, namespace=str(layer_bytes), layer_bytes=layer_bytes)
        assert restored(instance, names) == names


def test_case_a46_memory_is_not_taken_for_a_disk(
    new_manager: Callable[..., Manager], place: Place, tmp_path: Path
) -> None:
    """A file system in memory takes direct I/O in newer kernels, and has nothing but the page cache."""
    manager = on_ssd(new_manager, place.directory, "8mib", wrapper=place.wrapper)
    in_memory = place.directory.is_relative_to(IN_MEMORY)
    if not in_memory and subprocess.check_output(["stat", "-fc%T", tmp_path], text=True).strip() == "tmpfs":
        pytest.skip("the directory of the test is in memory too")
    assert ssd(manager)["direct"] != in_memory, ssd(manager)["mode"]


def test_case_a52_a_directory_that_cannot_keep_files_is_refused(
    new_manager: Callable[..., Manager], tmp_path: Path
) -> None:
    """At start, with its name, and not at the first restore."""
    for directory in (Path("/proc"), Path("/proc/self/fd")):
        with pytest.raises(AssertionError, match=rf"exited with \d+[\s\S]*--ssd-cache-path.*{directory}"):
            on_ssd(new_manager, directory, "8mib")
    assert ssd(on_ssd(new_manager, tmp_path / "ssd", "8mib"))["state"] == "serving", "control"
