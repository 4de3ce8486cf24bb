"""One limit of a cache directory for all ranks and instances, which holds at every moment (case A-49)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import Instance, chain
from ssd import STORED_BYTES, disk_bytes, leave_on_ssd, on_ssd, ssd, wait_written
from support.manager import Manager

LIMIT_BYTES = 6 << 20
RANKS, INSTANCES = 2, 2
CHAIN_PAGES = 8
# Four times what fits.
CHAINS = 4 * LIMIT_BYTES // (INSTANCES * CHAIN_PAGES * RANKS * STORED_BYTES)


class Peak:
    """The most that the file system has given to a directory, looked at all the time."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._ends = directory, threading.Event()
        self.bytes = 0
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ends.wait(0.001):
            self.bytes = max(self.bytes, disk_bytes(self._directory))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


@pytest.mark.parametrize("limit_bytes", [LIMIT_BYTES, 6 * LIMIT_BYTES], ids=["limit", "control"])
def test_case_a49_one_limit_for_ranks_and_instances(
    new_manager: Callable[..., Manager],
    new_instance: Callable[..., Instance],
    tmp_path: Path,
    limit_bytes: int,
) -> None:
    directory = tmp_path / "ssd"
    manager = on_ssd(new_manager, directory, str(limit_bytes))
    namespaces = [f"model-{index}" for index in range(INSTANCES)]
    instances = [new_instance(manager, namespace=name, world_size=RANKS) for name in namespaces]
    with Peak(directory) as peak:
        for number in range(CHAINS):
            for instance in instances:
                instance.save(f"chain-{number}", CHAIN_PAGES)
            wait_written(manager)
    written = INSTANCES * CHAINS * CHAIN_PAGES * RANKS * STORED_BYTES
    assert ssd(manager)["written_bytes"] >= written > 3 * LIMIT_BYTES
    if limit_bytes > LIMIT_BYTES:
        assert peak.bytes > 3 * LIMIT_BYTES, "with room it takes as much as is written"
        return
    assert LIMIT_BYTES // 2 < peak.bytes <= LIMIT_BYTES
    assert ssd(manager)["evicted_pages"] > 0
    # It is used for both: the last chain of each comes back, of all ranks.
    for instance in instances:
        leave_on_ssd(manager, instance)
        query = instance.scheduler.query(chain(f"chain-{CHAINS - 1}", CHAIN_PAGES), deadline_ms=10_000)
        query.wait(10_000_000)
        assert query.pages == CHAIN_PAGES
        assert instance.restore(query, CHAIN_PAGES) == []
        assert instance.differing(f"chain-{CHAINS - 1}", CHAIN_PAGES) == []
