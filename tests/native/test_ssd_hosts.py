"""Hosts that allow less: without io_uring, with little locked memory. Pages come back all the same."""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 - an ordinary user may not be able to read this interpreter's files later
import os
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cached import assert_restored, found, ssd_flags
from scripted import Instance
from support.child import Child
from support.manager import COMMAND, Manager
from tiered import store

NOBODY = 65534
MEMLOCK_BYTES = 8 << 20
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
SECCOMP_MODE_FILTER = 2
SECCOMP_ERRNO_EPERM, SECCOMP_ALLOW = 0x0005_0001, 0x7FFF_0000
# Load a word, jump if equal, return.
LD_WORD, JEQ, RET = 0x20, 0x15, 0x06
SYS_IO_URING_SETUP = 425


def nothing(_: Path) -> None:
    """The control."""


def forbid_io_uring(_: Path) -> None:
    """io_uring_setup is EPERM for this thread and its children from now on, as in many containers."""
    words = [(LD_WORD, 0, 0, 0), (JEQ, 0, 1, SYS_IO_URING_SETUP), (RET, 0, 0, SECCOMP_ERRNO_EPERM)]
    words.append((RET, 0, 0, SECCOMP_ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *word) for word in words))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(words), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0),
        (PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), program),
    ):
        assert libc.prctl(*call) == 0, os.strerror(ctypes.get_errno())


def become_nobody(directory: Path) -> None:
    """An ordinary user with the memory lock that most of them have."""
    for path in (directory, *directory.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (MEMLOCK_BYTES, MEMLOCK_BYTES))
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


class Scene:
    """For `Child`: a manager with a cache directory and an instance, in a process that may do less."""

    def __init__(self, directory: Path, restrict: Callable[[Path], None], flags: tuple[str, ...]) -> None:
        os.environ["ORBITKV_TEST_DIR"] = str(directory)
        os.environ["PATH"] = f"{directory}:{os.environ['PATH']}"
        restrict(directory)
        flags = (*ssd_flags(directory / "ssd"), *flags)
        self._manager = Manager(directory, pool_size="16mib", flags=flags).start()
        self._instance = Instance(found(self._manager).socket).wait_active()

    def round_trip(self) -> None:
        """A chain goes to the SSD and comes back, byte for byte."""
        store(self._manager, self._instance, "a")
        assert_restored(self._instance, "a")
        assert self._manager.counters()["tier_pages"] > 0, "it came from the SSD"
        self._manager.assert_drained()

    def views(self) -> tuple[dict[str, Any], dict[str, float], str]:
        """Status of the directory, metrics, log."""
        return self._manager.status()["ssd"][0], self._manager.metrics(), self._manager.log()

    def uid(self) -> int:
        """Of the manager's process."""
        return Path(f"/proc/{self._manager.pid}").stat().st_uid

    def stop(self) -> int:
        """Ends the instance and the manager."""
        self._instance.close()
        return self._manager.stop()


@pytest.fixture
def new_scene(test_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Child]]:
    """Scenes in directories of their own, with a copy of the manager that anybody may run."""
    scenes: list[Child] = []
    directories: list[Path] = []

    def start(restrict: Callable[[Path], None], *flags: str) -> Child:
        directory = Path(tmp_path_factory.mktemp("s"))
        for parent in (directory.parent, directory.parent.parent):
            parent.chmod(0o755)
        directories.append(directory)
        executable = shutil.which(COMMAND)
        assert executable, f"{COMMAND} is not on PATH: run these tests by `make test`"
        shutil.copy(executable, directory / COMMAND)
        scenes.append(Child(test_dir, Scene, directory, restrict, flags))
        return scenes[-1]

    yield start
    for scene in scenes:
        scene.call("stop")
        scene.close()
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def test_where_io_uring_is_forbidden_threads_take_over_and_it_is_said_once(
    new_scene: Callable[..., Child],
) -> None:
    for restrict, engine in ((nothing, "io_uring"), (forbid_io_uring, "threads")):
        scene = new_scene(restrict)
        scene.call("round_trip")
        ssd, metrics, log = scene.call("views")
        assert ssd["engine"] == engine, ssd["mode"]
        assert metrics[f'orbitkv_ssd_io{{engine="{engine}"}}'] == 1
        assert log.count("io_uring_setup is not permitted") == (engine == "threads"), log


def test_the_flag_chooses_threads(new_scene: Callable[..., Child]) -> None:
    scene = new_scene(nothing, "--ssd-io", "threads")
    scene.call("round_trip")
    ssd, metrics, log = scene.call("views")
    assert (ssd["engine"], ssd["registered"]) == ("threads", False)
    assert metrics['orbitkv_ssd_io{engine="threads"}'] == 1
    assert log.count("io_uring is switched off") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_with_little_locked_memory_is_served(new_scene: Callable[..., Child]) -> None:
    for restrict, kind, uid in ((nothing, "registered", 0), (become_nobody, "unregistered", NOBODY)):
        scene = new_scene(restrict)
        scene.call("round_trip")
        ssd, metrics, log = scene.call("views")
        assert scene.call("uid") == uid
        assert (ssd["engine"], ssd["registered"]) == ("io_uring", kind == "registered"), ssd["mode"]
        assert metrics[f'orbitkv_ssd_buffers{{kind="{kind}"}}'] == 1
        assert log.count("memory-lock limit") == (kind == "unregistered"), log
