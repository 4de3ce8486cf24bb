"""A slower tier behind a manager's pool, and answers of scripted clients on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scripted import PAGE_BYTES, Instance, chain
from support.manager import Manager, slow_tier
from support.wait import wait_until

from orbitkv import _native as native

Start = Callable[..., Manager]
PAGES = 12
# What is owned is slots: a page and its header of 4 KiB.
SLOT_BYTES = -(-(4096 + PAGE_BYTES) // 4096) * 4096
BYTES = PAGES * SLOT_BYTES


def tiered(new_manager: Start, *flags: str, delay_ms: int = 150, pool_size: str = "16mib") -> Manager:
    """A manager with a slower tier. A quarter of its default budget takes `PAGES` four times over."""
    tier = slow_tier(delay_ms, size="64mib")
    return new_manager(pool_size=pool_size, segment_size="2mib", flags=(*tier, *flags))


def store(manager: Manager, instance: Instance, name: str, pages: int = PAGES) -> None:
    """A chain that is in the tier and not in memory."""
    before = manager.status()["tier"]["pages"]
    instance.save(name, pages)
    wait_until(lambda: manager.status()["tier"]["pages"] == before + pages, f"{name} is in the tier")
    manager.assert_drained()
    manager.drop_memory()
    assert manager.status()["pool"]["pages"] == 0
    for memory in instance.memories:
        memory.poison()


def prepared(preparation: Any, pages: int = PAGES) -> None:
    """Waits until a preparation holds so many pages."""
    wait_until(lambda: preparation.poll() != native.PENDING, "a preparation is answered")
    state = (preparation.poll(), preparation.pages, preparation.miss_reason)
    assert state == (native.PREPARED, pages, "")


def ready(query: Any, pages: int = PAGES) -> None:
    """Waits until a query has so many pages."""
    wait_until(lambda: query.poll() != native.PENDING, "a query is answered")
    assert (query.poll(), query.pages, query.miss_reason) == (native.READY, pages, "")


def phase_bytes(manager: Manager, phase: str) -> int:
    """Bytes that operations of that phase own."""
    return manager.status()["query"]["reserved_bytes_by_phase"][phase]


def ask(instance: Instance, name: str, pages: int = PAGES, **options: Any) -> Any:
    """A query for a chain, not answered yet."""
    return instance.scheduler.query(chain(name, pages), **options)


def prepare(instance: Instance, name: str, pages: int = PAGES) -> Any:
    """A preparation of a chain, not answered yet."""
    return instance.scheduler.prepare_prefix(chain(name, pages))
