"""Copies beside an engine of the GPU benchmark, on host memory and a real manager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benches.gpu.copies import begin_copies, close_copies, end_copies, open_copies
from support.manager import Manager

BLOCKS, LAYERS = 5, 3


@pytest.fixture
def worker(new_manager: Callable[..., Manager]) -> Iterator[Any]:
    """A worker with KV that is read by nobody, and the manager that it asks."""
    kv_caches = [torch.zeros(BLOCKS, 2, 64, 2, 8) for _ in range(LAYERS)]
    manager = new_manager(pool_size="64mib", segment_size="8mib")
    worker = SimpleNamespace(model_runner=SimpleNamespace(kv_caches=kv_caches), manager=manager)
    yield worker
    close_copies(worker)


def test_both_directions_run_while_they_should(worker: Any) -> None:
    open_copies(worker, str(worker.manager.socket), BLOCKS)
    for _ in range(2):
        begin_copies(worker)
        copied = end_copies(worker)
        page_bytes = 2 * 64 * 2 * 8 * 4 * LAYERS
        assert copied["restored_bytes"] >= 32 * page_bytes
        assert copied["saved_bytes"] >= 32 * page_bytes
        counters = worker.manager.status()["counters"]
        # Nothing goes on between two rounds.
        assert worker.manager.status()["counters"] == counters
    assert not any(layer.any() for layer in worker.model_runner.kv_caches), "the engine's KV was touched"


def test_pages_that_are_not_found_are_an_error(worker: Any) -> None:
    """The control: copies that do not happen are no rounds without copies."""
    open_copies(worker, str(worker.manager.socket), BLOCKS)
    worker.manager.stop()
    begin_copies(worker)
    with pytest.raises(Exception, match="pages"):
        end_copies(worker)
