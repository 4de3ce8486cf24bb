"""One lookup is one owner, and what it was promised stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from scripted import PAGE_BYTES, Instance
from support.filler import Filler
from support.manager import Manager
from support.wait import wait_until

from orbitkv import _native as native

Connect = Callable[..., Instance]
PAGES = 12
POLLS = 50
POOL_PAGES = 64


@pytest.fixture
def small_manager(new_manager: Callable[..., Manager]) -> Manager:
    """A pool of `POOL_PAGES` pages, header of 4 KiB included."""
    slot_bytes = -(-(4096 + PAGE_BYTES) // 4096) * 4096
    return new_manager(pool_size=str(POOL_PAGES * slot_bytes), segment_size=str(8 * slot_bytes))


@pytest.fixture(params=["same namespace", "another namespace"])
def press(
    request: pytest.FixtureRequest, small_manager: Manager, new_instance: Connect
) -> Iterator[Callable[[], None]]:
    """Another client that presses twice the pool out of the pool. One of the same namespace takes single
    pages, one of another takes whole segments."""

    def press_with(save: Callable[[], object]) -> None:
        before = small_manager.counters()["evicted_pages"]
        enough = 2 * POOL_PAGES
        wait_until(
            lambda: small_manager.counters()["evicted_pages"] - before >= enough,
            f"{enough} pages are evicted",
            meanwhile=save,
        )

    if request.param == "another namespace":
        filler = Filler(small_manager, PAGE_BYTES)
        yield lambda: press_with(lambda: filler.fill(16))
        filler.close()
    else:
        other = new_instance(small_manager)
        names = itertools.count()
        yield lambda: press_with(lambda: other.save_what_fits(f"pressure-{next(names)}", 8))


def operations(manager: Manager) -> int:
    return sum(manager.status()["query"]["operations"].values())


@pytest.mark.parametrize("ending", ["load", "abort"])
def test_case_a13_asking_again_takes_no_other_hold(
    manager: Manager, new_instance: Connect, ending: str
) -> None:
    instance = new_instance(manager)
    instance.save("a", PAGES)
    before = manager.counters()["queries"]
    query = instance.query("a", PAGES)
    for _ in range(POLLS):
        assert query.poll() == native.READY
        assert query.pages == PAGES
        status = manager.status()["query"]
        assert (status["leases"], operations(manager)) == (1, 1)
        assert status["reserved_bytes"] >= PAGES * PAGE_BYTES
    assert manager.counters()["queries"] - before == 1
    if ending == "load":
        assert instance.restore(query, PAGES) == []
        assert instance.differing("a", PAGES) == []
    else:
        query.release()
    manager.assert_drained()
    assert instance.found("a", PAGES) == PAGES


def test_case_a13_a_forgotten_query_ends_by_itself(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager)
    instance.save("a", PAGES)
    query = instance.query("a", PAGES)
    assert manager.status()["query"]["leases"] == 1
    del query
    manager.assert_drained()


def test_case_a18_promised_pages_survive_pressure(
    small_manager: Manager, new_instance: Connect, press: Callable[[], None]
) -> None:
    instance = new_instance(small_manager)
    instance.save("a", PAGES)
    query = instance.query("a", PAGES)
    press()
    instance.memories[0].poison()
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    small_manager.assert_drained()

    # Control: without the lease the same pressure takes them.
    press()
    assert instance.found("a", PAGES) == 0


def test_a_lease_outlives_a_reset(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager)
    instance.save("a", PAGES)
    query = instance.query("a", PAGES)
    assert instance.scheduler.reset().wait(10_000_000)
    assert instance.found("a", PAGES) == 0
    instance.memories[0].poison()
    assert instance.restore(query, PAGES) == []
    assert instance.differing("a", PAGES) == []
    manager.assert_drained()
    assert manager.status()["pool"]["pages"] == 0


def test_at_most_128_operations_a_session(manager: Manager, new_instance: Connect) -> None:
    instance = new_instance(manager)
    instance.save("a", 1)
    queries = [instance.query("a", 1) for _ in range(128)]
    assert {query.poll() for query in queries} == {native.READY}
    refused = instance.query("a", 1)
    assert (refused.poll(), refused.pages, refused.miss_reason) == (native.MISS, 0, "limit")
    # The limit is the session's: another one is not concerned.
    assert new_instance(manager).found("a", 1) == 1
    queries.pop().release()
    assert instance.found("a", 1) == 1
    for query in queries:
        query.release()
    manager.assert_drained()
