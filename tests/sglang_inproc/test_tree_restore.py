"""Pages that the tree has evicted come back from the manager, byte for byte."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from harness import LAYERS, PAGE, POOL_TOKENS, Tree, computed, prompt
from support.holds import FAIL_PAGE, RESTORE_FAULT, Holds
from support.manager import Manager
from support.pool import flip_byte

Build = Callable[..., Tree]


def test_saved_then_flushed_then_restored(tree: Tree) -> None:
    tokens = prompt(1, 320)
    cold = tree.run(tokens)
    assert (cold.held, cold.restored) == (0, 0)
    held = tree.run(tokens)
    assert (held.held, held.restored) == (256, 0)
    tree.flush()
    again = tree.run(tokens)
    assert (again.held, again.restored) == (0, 256)
    assert tree.is_right(again)
    tree.settle()
    tree.assert_drained()


@pytest.mark.parametrize("fault", ["skip", "zero"])
def test_a_copy_that_does_not_happen_is_seen(tree: Tree, holds: Holds, fault: str) -> None:
    """The control of every comparison of bytes here."""
    tokens = prompt(2, 320)
    tree.run(tokens)
    tree.flush()
    with holds.switched(RESTORE_FAULT, fault):
        again = tree.run(tokens)
        tree.settle()
    assert again.restored == 256
    assert not tree.is_right(again)


def test_pages_come_back_after_eviction(tree: Tree) -> None:
    """The pool holds 2,048 tokens; other requests push out the first ones."""
    tokens = prompt(3, 640)
    tree.run(tokens)
    for other in range(4):
        tree.run(prompt(10 + other, POOL_TOKENS // 3))
        tree.settle()
    again = tree.run(tokens)
    assert again.held + again.restored == 576
    assert again.restored > 0
    assert tree.is_right(again)


@pytest.mark.parametrize(
    ("tokens", "start", "restored"),
    [(320, None, 256), (321, None, 320), (640, None, 576), (320, 100, 64), (320, 63, 0)],
)
def test_what_may_be_restored_ends_where_the_engine_must_compute(
    tree: Tree, tokens: int, start: int | None, restored: int
) -> None:
    ids = prompt(4, tokens)
    tree.run(ids)
    tree.flush()
    again = tree.run(ids, logprob_start=start)
    assert again.restored == restored
    assert tree.is_right(again)


def test_the_last_page_of_an_aligned_prompt_serves_longer_ones(tree: Tree) -> None:
    tokens = prompt(5, 320)
    tree.run(tokens)
    tree.flush()
    assert tree.run([*tokens, *prompt(6, 100)]).restored == 320


def test_another_salt_or_adapter_restores_nothing(tree: Tree) -> None:
    tokens = prompt(7, 320)
    tree.run(tokens, cache_salt="one", extra_key="lora-a")
    tree.flush()
    for fields in (
        {},
        {"cache_salt": "two", "extra_key": "lora-a"},
        {"cache_salt": "one", "extra_key": "lora-b"},
    ):
        assert tree.run(tokens, **fields).restored == 0, fields
    tree.flush()
    assert tree.run(tokens, cache_salt="one", extra_key="lora-a").restored == 256


def test_a_restored_tail_behind_a_resident_prefix(tree: Tree) -> None:
    """Only what the device lacks is restored, and of what is promised only what the tree adopts."""
    tokens = prompt(8, 640)
    tree.run(tokens)
    tree.flush()
    assert tree.run(tokens[:192]).restored == 128
    again = tree.run(tokens)
    assert (again.held, again.restored) == (192, 384)
    assert tree.is_right(again)


def test_several_waiting_requests_restore_a_prompt_once(tree: Tree) -> None:
    tokens = prompt(9, 320)
    tree.run(tokens)
    tree.flush()
    requests = [tree.enqueue(tokens) for _ in range(4)]
    for request in requests:
        tree.wait_start(request)
    for request in requests:
        tree.admit(request)
    tree.begin_forward(requests[0])
    for request in requests:
        request.consumer = requests[0].consumer
        tree.forward(request)
        tree.finish(request)
    assert [request.restored for request in requests] == [256, 0, 0, 0]
    assert all(tree.is_right(request) for request in requests)
    tree.settle()
    tree.assert_drained()
    assert tree.linker.counters["loads"] == 1


def test_a_damaged_page_is_found_before_it_is_promised(tree: Tree) -> None:
    """What is behind it is not restored either; the manager drops it."""
    tokens = prompt(20, 640)
    first = tree.run(tokens)
    tree.settle()
    page = b"".join(
        bytes(buffer[256:320].contiguous().view(-1).view(torch.uint8).numpy())
        for layer in range(LAYERS)
        for buffer in computed(first, layer)
    )
    flip_byte(tree.manager.pid, page, 1000)
    tree.flush()
    again = tree.run(tokens)
    assert again.restored == 256
    assert tree.is_right(again)
    tree.settle()
    tree.assert_drained()


def test_a_page_that_cannot_be_restored_ends_the_promise(tree: Tree, holds: Holds) -> None:
    tokens = prompt(21, 640)
    tree.run(tokens)
    tree.flush()
    holds.set(FAIL_PAGE, 4)
    again = tree.run(tokens)
    assert again.restored == 3 * PAGE
    assert tree.is_right(again)


def test_without_a_manager_everything_is_computed(new_tree: Build) -> None:
    tree = new_tree(None)
    tokens = prompt(22, 320)
    for _ in range(2):
        request = tree.run(tokens)
        assert request.restored == 0
        tree.settle()
        tree.flush()


def test_a_manager_that_comes_later_is_used(new_manager: Callable[..., Manager], new_tree: Build) -> None:
    manager = new_manager(pool_size="32mib")
    manager.stop()
    tree = new_tree(None, socket=str(manager.socket))
    tokens = prompt(23, 320)
    assert tree.run(tokens).restored == 0
    manager.start()
    tree.until(lambda: tree.linker._scheduler.active, "the engine is active")
    tree.flush()
    tree.run(tokens)
    tree.flush()
    assert tree.run(tokens).restored == 256
