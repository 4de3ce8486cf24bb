"""A pool that the GPU benchmark has grow beside an engine: a real manager, and an instance as the engine."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benches.gpu import grower
from benches.gpu.grower import Grower
from benches.gpu.process import ProcessError
from scripted import PAGE_BYTES, Instance
from support.manager import Manager
from support.wait import wait_until

SEGMENT_BYTES, POOL_BYTES = 2 << 20, 64 << 20


@pytest.fixture
def manager(new_manager: Callable[..., Manager]) -> Manager:
    return new_manager(pool_size=str(POOL_BYTES), segment_size=str(SEGMENT_BYTES))


def pages(namespace: str) -> dict[str, Any]:
    digest = hashlib.sha256(namespace.encode()).hexdigest()
    return {"namespace": digest, "page_bytes": PAGE_BYTES, "block_tokens": 16}


# A first line: the kernel may cut a mapping into several. All managers number segments alike; inodes differ.
SEGMENT = re.compile(r"^\S+ \S+ 0+ \S+ (\d+) +/memfd:orbitkv-", re.MULTILINE)


def times_mapped() -> Counter[str]:
    """How often each segment is mapped in this process: by the instance, and by the client beside it."""
    return Counter(SEGMENT.findall(Path("/proc/self/maps").read_text()))


@pytest.mark.parametrize(("namespace", "is_shared"), [("one", True), ("another", False)])
def test_the_engine_is_given_what_grows(
    manager: Manager, new_instance: Callable[..., Instance], namespace: str, is_shared: bool
) -> None:
    # Of instances of other tests, which may end later.
    earlier = times_mapped().keys()
    new_instance(manager, namespace="one")
    with Grower(manager, pages(namespace)) as client:
        grown = client.grow(8 * SEGMENT_BYTES)
        assert grown >= 8 * SEGMENT_BYTES

        def new() -> list[int]:
            return [count for inode, count in times_mapped().items() if inode not in earlier]

        def twice() -> int:
            return sum(count >= 2 for count in new())

        wait_until(lambda: len(new()) >= 8, "the segments are mapped")
        if is_shared:
            wait_until(lambda: twice() >= 8, "the instance has the segments")
        else:
            assert twice() == 0


def test_the_room_is_free_afterwards(manager: Manager, new_instance: Callable[..., Instance]) -> None:
    instance = new_instance(manager, namespace="one")
    with Grower(manager, pages("one")) as client:
        for _ in range(2):
            before = manager.status()["pool"]["bytes"]
            grown = client.grow(4 * SEGMENT_BYTES)
            assert manager.status()["pool"]["bytes"] >= before + grown
            wait_until(lambda: manager.status()["save"]["reservations"] == 0, "nothing is reserved")
    assert manager.status()["pool"]["pages"] == 0
    instance.save("p", 8)
    assert manager.status()["pool"]["pages"] == 8


def test_a_pool_that_cannot_grow_says_so(
    manager: Manager, new_instance: Callable[..., Instance], monkeypatch: pytest.MonkeyPatch
) -> None:
    new_instance(manager, namespace="one")
    monkeypatch.setattr(grower, "GROWS_WITHIN_S", 1.0)
    with Grower(manager, pages("one")) as client, pytest.raises(ProcessError, match="raise its limit"):
        client.grow(2 * POOL_BYTES)
