"""A client dies, or loses its connection, while its worker may still write pool pages."""

from __future__ import annotations

import ctypes
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import Instance, ScriptedChild
from support.child import Child
from support.holds import COMMIT, COPY_RESTORE, COPY_SAVE
from support.manager import Manager
from support.processes import is_alive
from support.wait import wait_until

Connect = Callable[..., Instance]
PAGES = 12
SYS_PIDFD_GETFD = 438


@pytest.fixture
def victim(manager: Manager, test_dir: Path) -> Iterator[Child]:
    child = Child(test_dir, ScriptedChild, manager.socket)
    yield child
    child.close()


def disconnect(pid: int) -> int:
    """Ends the Unix sockets of another process from outside; how many."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd = os.pidfd_open(pid)
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if not link_of(entry).startswith("socket:"):
            continue
        fd = libc.syscall(SYS_PIDFD_GETFD, pidfd, int(entry.name), 0)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        with socket.socket(fileno=fd) as connection:
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0 and is_of(connection):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    os.close(pidfd)
    return count


def link_of(entry: Path) -> str:
    """What a descriptor is; nothing if it was closed since."""
    try:
        return str(entry.readlink())
    except FileNotFoundError:
        return ""


def is_of(connection: socket.socket) -> bool:
    """Whether a socket leads to a manager, and is not the pipe to the test."""
    return str(connection.getpeername()).endswith("manager.sock")


def quarantined(manager: Manager) -> int:
    """Bytes in quarantine, as both views of the manager have them."""
    status = manager.status()["pool"]["quarantined_bytes"]
    if status == manager.metrics()["orbitkv_pool_quarantined_bytes"]:
        return status
    # It changed between the two looks.
    return quarantined(manager)


def assert_nothing_left(manager: Manager, survivor: Instance) -> None:
    manager.assert_drained()
    assert survivor.found("a", PAGES) == 0
    # Its room is room again.
    survivor.save("b", PAGES)
    assert survivor.restore(survivor.query("b", PAGES), PAGES) == []
    assert survivor.differing("b", PAGES) == []


def test_client_killed_in_the_middle_of_a_save(
    manager: Manager, new_instance: Connect, victim: Child
) -> None:
    survivor = new_instance(manager)
    victim.holds.hold(COPY_SAVE)
    victim.call("begin_save", "a", PAGES)
    victim.holds.wait_reached(COPY_SAVE, PAGES)
    assert manager.status()["save"]["inflight_bytes"] > 0
    assert survivor.found("a", PAGES) == 0
    victim.kill()
    wait_until(lambda: manager.active_instances() == 1, "the manager knows that it is gone")
    assert manager.counters()["quarantined_slots"] == PAGES
    assert_nothing_left(manager, survivor)


def test_control_not_killed_its_save_becomes_visible(
    manager: Manager, new_instance: Connect, victim: Child
) -> None:
    survivor = new_instance(manager)
    victim.holds.hold(COPY_SAVE)
    victim.call("begin_save", "a", PAGES)
    victim.holds.wait_reached(COPY_SAVE, PAGES)
    victim.holds.release(COPY_SAVE)
    wait_until(lambda: survivor.found("a", PAGES) == PAGES, "the pages are visible")
    # And they outlive the process that saved them.
    victim.kill()
    wait_until(lambda: manager.active_instances() == 1, "the manager knows that it is gone")
    assert survivor.restore(survivor.query("a", PAGES), PAGES) == []
    assert survivor.differing("a", PAGES) == []
    manager.assert_drained()


def test_quarantine_lasts_as_long_as_the_process(
    manager: Manager, new_instance: Connect, victim: Child
) -> None:
    """The connection ends, the process does not: it could still write, so its slots are nobody's."""
    survivor = new_instance(manager)
    victim.holds.hold(COPY_SAVE)
    victim.call("begin_save", "a", PAGES)
    victim.holds.wait_reached(COPY_SAVE, PAGES)
    inflight = manager.status()["save"]["inflight_bytes"]
    assert inflight > 0
    victim.freeze()
    assert disconnect(victim.pid) == 2
    wait_until(lambda: quarantined(manager) == inflight, "the slots are quarantined")
    assert manager.status()["sessions"]["unfinished"] > 0
    # The pool is filled around them.
    names = itertools.count()

    def fill() -> bool:
        survivor.save_what_fits(f"fill-{next(names)}", 8)
        return manager.counters()["evicted_pages"] > 3 * PAGES

    wait_until(fill, "pages are evicted")
    assert quarantined(manager) == inflight
    assert is_alive(victim.pid)
    victim.kill()
    assert_nothing_left(manager, survivor)


def test_client_killed_in_the_middle_of_a_restore(
    manager: Manager, new_instance: Connect, victim: Child
) -> None:
    survivor = new_instance(manager)
    survivor.save("b", PAGES)
    victim.holds.hold(COPY_RESTORE)
    victim.call("begin_restore", "b", PAGES)
    victim.holds.wait_reached(COPY_RESTORE)
    status = manager.status()
    assert status["query"]["leases"] == 1
    assert status["load"]["inflight_bytes"] > 0
    victim.kill()
    manager.assert_drained()
    assert survivor.found("b", PAGES) == PAGES


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
def test_connection_lost_in_the_middle_of_a_save_heals(
    manager: Manager, new_instance: Connect, victim: Child, point: str
) -> None:
    """The same process comes back: its old copies end, it says so, and their slots are free."""
    survivor = new_instance(manager)
    victim.holds.hold(point)
    victim.call("begin_save", "a", PAGES)
    victim.holds.wait_reached(point, PAGES)
    assert manager.status()["save"]["inflight_bytes"] > 0
    assert disconnect(victim.pid) == 2
    wait_until(lambda: victim.call("reconnects") == 1, "it has connected again")
    victim.holds.release(point)
    wait_until(lambda: quarantined(manager) == 0, "it has said that its copies ended")
    assert is_alive(victim.pid)
    wait_until(lambda: manager.active_instances() == 2, "it is back")
    manager.assert_drained()
    assert survivor.found("a", PAGES) == 0
    victim.call("save", "c", PAGES)
    assert survivor.found("c", PAGES) == PAGES


def test_quarantine_ends_when_the_process_itself_comes_back_and_not_before(
    manager: Manager, new_instance: Connect, victim: Child
) -> None:
    """The same loss, and a process that cannot speak for a while: only its own word frees the slots."""
    survivor = new_instance(manager)
    victim.holds.hold(COPY_SAVE)
    victim.call("begin_save", "a", PAGES)
    victim.holds.wait_reached(COPY_SAVE, PAGES)
    inflight = manager.status()["save"]["inflight_bytes"]
    victim.freeze()
    assert disconnect(victim.pid) == 2
    wait_until(lambda: quarantined(manager) == inflight, "the slots are quarantined")
    # Many times what a client needs to come back.
    for name in range(50):
        survivor.save(f"b-{name}", 1)
        time.sleep(0.02)
    assert quarantined(manager) == inflight
    assert manager.active_instances() == 1
    victim.thaw()
    wait_until(lambda: quarantined(manager) == 0, "it came back and said that its copies ended")
    assert is_alive(victim.pid)
    victim.holds.release(COPY_SAVE)
    manager.assert_drained()
    assert survivor.found("a", PAGES) == 0
    victim.call("save", "c", PAGES)
    assert survivor.found("c", PAGES) == PAGES
