"""Whatever becomes of a request, its pages are leased no longer than it may still want them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import PAGE, Request, Tree, prompt
from support.holds import QUERY_REPLY, Holds
from support.manager import Manager

Build = Callable[..., Tree]
COMPARE = "compare"  # before a checksum is compared
COPY_RESTORE = "copy_restore"
ROUNDS = 500


@pytest.fixture
def stored(tree: Tree) -> list[int]:
    """A prompt whose pages are in the manager, and not on the device."""
    tokens = prompt(1, 640)
    tree.run(tokens)
    tree.flush()
    tree.assert_drained()
    return tokens


def ready(tree: Tree, tokens: list[int]) -> Request:
    """A queued request to which its pages are promised."""
    request = tree.enqueue(tokens)
    tree.wait_start(request)
    assert tree.match(request).host_hit_length == 576
    return request


def test_repeated_lookups_hold_one_lease(tree: Tree, stored: list[int]) -> None:
    request = ready(tree, stored)
    before = tree.manager.counters()["queries"]
    for _ in range(50):
        tree.step()
        assert tree.match(request).host_hit_length == 576
    assert tree.manager.counters()["queries"] == before
    assert len(tree.linker.demands) == 1
    assert tree.admit(request) == 576
    tree.begin_forward(request)
    tree.forward(request)
    assert tree.is_right(request)
    tree.finish(request)
    tree.settle()
    tree.assert_drained()


def test_a_request_waits_for_its_own_query_alone(tree: Tree, stored: list[int]) -> None:
    with tree.manager.holds.held(QUERY_REPLY):
        held = tree.enqueue(stored)
        tree.manager.holds.wait_reached(QUERY_REPLY)
        assert not tree.may_start(held)
        # Shorter than a page: there is nothing to ask for.
        other = tree.enqueue(prompt(2, 40))
        assert tree.may_start(other)
        assert not tree.may_start(held)
    tree.wait_start(held)
    assert tree.match(held).host_hit_length == 576


def test_a_deadline_ends_the_wait(manager: Manager, new_tree: Build) -> None:
    tree = new_tree(manager, lookup_deadline_ms=100)
    tokens = prompt(1, 320)
    tree.run(tokens)
    tree.flush()
    with manager.holds.held(QUERY_REPLY):
        request = tree.enqueue(tokens)
        tree.wait_start(request)
        assert tree.match(request).host_hit_length == 0
        assert tree.linker.demands.counters["lookup_timeouts"] == 1
    tree.cache.release_aborted_request(request.handle)
    tree.assert_drained()


def test_pages_that_are_not_checked_in_time_are_not_promised(
    manager: Manager, new_tree: Build, holds: Holds
) -> None:
    tree = new_tree(manager, lookup_deadline_ms=100)
    tokens = prompt(1, 320)
    tree.run(tokens)
    tree.flush()
    with holds.held(COMPARE):
        request = tree.enqueue(tokens)
        tree.wait_start(request)
        assert tree.match(request).host_hit_length == 0
    tree.cache.release_aborted_request(request.handle)
    tree.assert_drained()


@pytest.mark.parametrize("state", ["asked", "checked", "ready"])
def test_an_abort_in_the_queue_releases(tree: Tree, stored: list[int], holds: Holds, state: str) -> None:
    if state == "asked":
        with tree.manager.holds.held(QUERY_REPLY):
            request = tree.enqueue(stored)
            tree.manager.holds.wait_reached(QUERY_REPLY)
            tree.cache.release_aborted_request(request.handle)
    elif state == "checked":
        with holds.held(COMPARE):
            request = tree.enqueue(stored)
            tree.until(lambda: bool(tree.linker.demands.unsettled()), "its pages are pinned")
            tree.cache.release_aborted_request(request.handle)
    else:
        tree.cache.release_aborted_request(ready(tree, stored).handle)
    tree.assert_drained()


def test_a_flush_releases(tree: Tree, stored: list[int]) -> None:
    requests = [ready(tree, stored), tree.enqueue(stored)]
    tree.flush()
    tree.assert_drained()
    for request in requests:
        assert tree.may_start(request)
        assert tree.match(request).host_hit_length == 0


def test_a_resident_prefix_that_has_grown_releases(tree: Tree, stored: list[int]) -> None:
    waiting = ready(tree, stored)
    tree.run([*stored, *prompt(3, 10)])
    match = tree.match(waiting)
    assert (waiting.held, match.host_hit_length) == (576, 0)
    tree.settle()
    tree.assert_drained()


def test_a_device_that_has_lost_pages_asks_anew(tree: Tree, stored: list[int]) -> None:
    """What was asked for does not reach to where the device now ends."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    tree.run(stored[:193])
    tree.settle()
    waiting = tree.enqueue(stored)
    assert waiting.held == 192
    tree.wait_start(waiting)
    assert tree.match(waiting).host_hit_length == 384
    tree.cache.evict(EvictParams(num_tokens=2048))
    assert tree.match(waiting).host_hit_length == 0
    assert waiting.held == 0
    # The scheduler sees the loss, and queues the request's pages again.
    tree.match(waiting)
    tree.cache.prefetch_from_storage(waiting.handle, waiting.last_node, [])
    tree.wait_start(waiting)
    assert tree.admit(waiting) == 576
    tree.begin_forward(waiting)
    tree.forward(waiting)
    assert tree.is_right(waiting)


def test_a_shutdown_releases(manager: Manager, new_tree: Build) -> None:
    tree = new_tree(manager)
    tokens = prompt(1, 320)
    tree.run(tokens)
    tree.flush()
    tree.wait_start(tree.enqueue(tokens))
    tree.cache.release_host_resources()
    manager.assert_drained()


def test_a_flush_waits_for_a_load(tree: Tree, stored: list[int], holds: Holds) -> None:
    """It is stopped: no byte of it lands in pages that are given out again."""
    request = ready(tree, stored)
    holds.hold(COPY_RESTORE)
    tree.admit(request)
    tree.begin_forward(request)
    holds.wait_reached(COPY_RESTORE)
    tree.flush()
    holds.release(COPY_RESTORE)
    tree.assert_drained()
    assert all((buffer == -1).all() for layer in range(4) for buffer in tree.buffers(layer))


def run_promised(tree: Tree, request: Request) -> None:
    assert tree.match(request).host_hit_length == 576
    assert tree.admit(request) == 576
    tree.begin_forward(request)
    tree.forward(request)
    assert tree.is_right(request)
    tree.finish(request)
    tree.settle()


def test_a_manager_that_dies_after_a_promise_does_not_break_it(tree: Tree, stored: list[int]) -> None:
    request = ready(tree, stored)
    tree.manager.kill()
    tree.until(lambda: not tree.linker._worker.connected, "the worker has seen the end")
    run_promised(tree, request)
    after = tree.run(prompt(4, 320))
    assert after.restored == 0


def test_a_manager_that_is_replaced_after_a_promise_does_not_break_it(tree: Tree, stored: list[int]) -> None:
    """The other run hands out the same numbers for other memory."""
    request = ready(tree, stored)
    tree.manager.kill()
    tree.manager.start()
    tree.until(lambda: tree.linker._scheduler.active, "the engine is active again")
    tree.run(prompt(5, 640))
    tree.settle()
    run_promised(tree, request)
    tree.assert_drained()


def test_a_manager_that_dies_before_the_answer_is_a_miss(tree: Tree, stored: list[int]) -> None:
    tree.manager.holds.hold(QUERY_REPLY)
    request = tree.enqueue(stored)
    tree.manager.holds.wait_reached(QUERY_REPLY)
    tree.manager.kill()
    tree.wait_start(request)
    assert tree.match(request).host_hit_length == 0


def test_a_manager_that_stops_answering_ends_at_the_deadline(manager: Manager, new_tree: Build) -> None:
    tree = new_tree(manager, lookup_deadline_ms=100)
    tokens = prompt(1, 640)
    tree.run(tokens)
    tree.flush()
    promised = ready(tree, tokens)
    manager.freeze()
    late = tree.enqueue(tokens)
    tree.wait_start(late)
    assert tree.match(late).host_hit_length == 0
    tree.cache.release_aborted_request(late.handle)
    run_promised(tree, promised)
    manager.thaw()
    tree.assert_drained()


def test_waiting_requests_are_prepared_and_claimed(manager: Manager, new_tree: Build) -> None:
    """The first four of the queue; what an abort or the next in line gives up goes back."""
    tree = new_tree(manager, prepare_requests=True)
    prompts = [prompt(40 + index, 320) for index in range(6)]
    for tokens in prompts:
        tree.run(tokens)
        tree.settle()
    tree.flush()
    before = tree.linker._scheduler.stats()
    requests = [tree.enqueue(tokens) for tokens in prompts]

    def since(counter: str) -> int:
        return tree.linker._scheduler.stats()[counter] - before[counter]

    tree.until(lambda: since("preparations") == 4, "four are prepared")
    for _ in range(20):
        tree.step()
    assert (since("preparations"), since("queries")) == (4, 0)
    tree.wait_start(requests[1])
    assert tree.match(requests[1]).host_hit_length == 256
    assert since("preparations_claimed") == 1
    for request in requests:
        tree.cache.release_aborted_request(request.handle)
    tree.assert_drained()


def test_rounds_of_aborts_leave_nothing(tree: Tree, stored: list[int]) -> None:
    """At whatever point each finds its request."""
    restored = 0
    for number in range(ROUNDS):
        request = tree.enqueue(stored)
        for _ in range(number % 7):
            tree.may_start(request)
        if number % 5 == 0:
            tree.wait_start(request)
            restored += tree.match(request).host_hit_length
        tree.cache.release_aborted_request(request.handle)
    assert restored == ROUNDS // 5 * 576
    tree.assert_drained()
    assert tree.run(stored).restored == 9 * PAGE
