"""Clearing what is behind the device, while pages are promised, loaded and saved (case A-33)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from harness import Tree, prompt
from support.holds import COMMIT, COPY_RESTORE, COPY_SAVE, Holds

from orbitkv.sglang import plugin

PAGES = 5
TOKENS = PAGES * 64


@pytest.fixture
def stored(tree: Tree) -> list[int]:
    """A prompt of which the manager has all pages and the device none."""
    tokens = prompt(1, TOKENS + 10)
    tree.run(tokens)
    tree.settle()
    tree.manager.wait_saved()
    tree.flush()
    return tokens


@pytest.mark.parametrize("is_cleared", [True, False], ids=["cleared", "control"])
def test_case_a33_nothing_is_found_after_a_clear(tree: Tree, stored: list[int], is_cleared: bool) -> None:
    waiting = tree.enqueue(stored)
    tree.wait_start(waiting)
    assert tree.match(waiting).host_hit_length == TOKENS
    if is_cleared:
        assert tree.cache.clear_storage_backend()
        tree.assert_drained()
    assert tree.admit(waiting) == (0 if is_cleared else TOKENS)
    tree.cache.release_aborted_request(waiting.handle)


def test_case_a33_what_is_being_loaded_arrives_and_is_not_found_again(
    tree: Tree, stored: list[int], holds: Holds
) -> None:
    loading = tree.enqueue(stored)
    tree.wait_start(loading)
    holds.hold(COPY_RESTORE)
    assert tree.admit(loading) == TOKENS
    tree.begin_forward(loading)
    holds.wait_reached(COPY_RESTORE)
    assert tree.cache.clear_storage_backend()
    assert tree.run(prompt(2, 10)).restored == 0
    holds.release(COPY_RESTORE)
    tree.forward(loading)
    assert tree.is_right(loading)
    tree.settle()
    tree.flush()
    assert tree.run(stored).restored == 0
    tree.settle()
    tree.assert_drained()


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
@pytest.mark.parametrize("is_cleared", [True, False], ids=["cleared", "control"])
def test_case_a33_what_is_being_saved_is_not_found_later(
    tree: Tree, holds: Holds, point: str, is_cleared: bool
) -> None:
    tokens = prompt(3, TOKENS + 10)
    holds.hold(point)
    tree.run(tokens)
    tree.until(lambda: holds.reached(point) == PAGES, "its pages are being saved")
    if is_cleared:
        assert tree.cache.clear_storage_backend()
    holds.release(point)
    tree.settle()
    assert tree.cache.protected_size() == 0
    # Commits are sent after the engine's pages are free again.
    tree.manager.wait_saved()
    tree.flush()
    assert tree.run(tokens).restored == (0 if is_cleared else TOKENS)
    tree.settle()
    tree.assert_drained()
    # It was saved anew.
    tree.manager.wait_saved()
    tree.flush()
    assert tree.run(tokens).restored == TOKENS


def test_case_a33_a_clear_without_a_manager_is_no_success_and_is_made_up_for(
    tree: Tree, stored: list[int]
) -> None:
    """A manager that answers late finds it before any question."""
    manager = tree.manager
    manager.freeze()
    assert not tree.cache.clear_storage_backend()
    manager.thaw()
    assert tree.run(stored).restored == 0
    tree.settle()
    manager.wait_saved()
    tree.flush()
    assert tree.run(stored).restored == TOKENS, "control: what was saved since is found"


def test_a_tree_of_sglang_is_cleared_by_sglang() -> None:
    def original(*args: object) -> tuple[object, ...]:
        return args

    scheduler, request = SimpleNamespace(tree_cache=SimpleNamespace()), object()
    assert plugin._around_clear(original, scheduler, request) == (scheduler, request)
