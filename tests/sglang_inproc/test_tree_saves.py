"""Pages that the tree inserts are saved, and lock their nodes no longer than that takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from harness import POOL_TOKENS, Tree, prompt
from support.holds import COMMIT, COPY_SAVE, Holds
from support.manager import Manager

from orbitkv.sglang import linker, saves
from orbitkv.sglang.layout import Blocks

Build = Callable[..., Tree]


def test_nodes_are_locked_until_their_pages_are_copied(tree: Tree, holds: Holds) -> None:
    holds.hold(COPY_SAVE)
    tree.run(prompt(1, 320))
    tree.until(lambda: holds.reached(COPY_SAVE) == 5, "five pages are about to be copied")
    tree.step()
    assert tree.cache.protected_size() == 320
    holds.release(COPY_SAVE)
    tree.settle()
    assert tree.cache.protected_size() == 0
    tree.assert_drained()


def test_a_save_begins_when_its_page_numbers_have_arrived(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device they come behind all that runs there, and no step waits for them."""
    arrived = False

    class Late(Blocks):
        def are_known(self) -> bool:
            return arrived

        def numbers(self) -> list[int]:
            assert arrived, "a step would wait for the device"
            return super().numbers()

    monkeypatch.setattr(linker, "Blocks", Late)
    # An answer that nobody can use yet is not one that does not come.
    monkeypatch.setattr(saves, "ANSWER_LIMIT_S", 0.2)
    tokens = prompt(40, 320)
    tree.run(tokens)
    until = time.monotonic() + 0.5
    tree.until(lambda: time.monotonic() > until, "some steps have been made")
    assert tree.linker.saves.counters["pages_saved"] == 0
    assert tree.cache.protected_size() == 320, "they are not to be evicted before they are saved"
    arrived = True
    tree.settle()
    assert tree.linker.saves.counters == {"pages_saved": 5, "pages_stored_before": 0}
    tree.flush()
    again = tree.run(tokens)
    assert again.restored == 256
    assert tree.is_right(again)


def test_a_flush_does_not_wait_for_page_numbers(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no copy reads need not be known."""

    class Never(Blocks):
        def are_known(self) -> bool:
            return False

        def numbers(self) -> list[int]:
            raise AssertionError("it would wait")

    monkeypatch.setattr(linker, "Blocks", Never)
    tree.run(prompt(41, 320))
    tree.flush()
    assert tree.cache.protected_size() == 0
    tree.assert_drained()


def test_a_page_is_saved_once(tree: Tree) -> None:
    """Not again for the request that restored it, nor for one that finds it on the device, nor where the
    manager has it already."""
    tokens = prompt(2, 320)
    tree.run(tokens)
    tree.settle()
    assert tree.linker.saves.counters["pages_saved"] == 5
    tree.run(tokens)
    tree.flush()
    tree.run([*tokens, *prompt(3, 64)])
    tree.settle()
    # The page behind the restored ones, alone.
    assert tree.linker.saves.counters["pages_saved"] == 6
    tree.flush()
    assert tree.run([*tokens, *prompt(3, 65)]).restored == 384
    tree.assert_drained()


def test_too_much_at_once_is_left_for_later(tree: Tree, holds: Holds) -> None:
    """Locked pages cannot be evicted, so at most half of the pool is."""
    holds.hold(COPY_SAVE)
    for seed in range(3):
        tree.run(prompt(10 + seed, POOL_TOKENS // 4))
        tree.step()
    assert len(tree.linker.saves) == 2
    assert tree.linker.saves.counters["offloads_refused"] == 1
    assert tree.cache.protected_size() == POOL_TOKENS // 2
    # The pool goes round all the same.
    tree.run(prompt(20, POOL_TOKENS // 4))
    tree.run(prompt(21, POOL_TOKENS // 4))
    holds.release(COPY_SAVE)
    tree.settle()
    # What was refused is offered again when it is inserted again.
    saved = tree.linker.saves.counters["pages_saved"]
    tree.run(prompt(12, POOL_TOKENS // 4))
    tree.settle()
    assert tree.linker.saves.counters["pages_saved"] > saved


@pytest.mark.parametrize("point", [COPY_SAVE, COMMIT])
def test_a_flush_ends_saves(tree: Tree, holds: Holds, point: str) -> None:
    """It gives them a moment, and stops those that are still held up. Nothing of the pool is read
    afterwards."""
    tokens = prompt(4, 320)
    holds.hold(point)
    tree.run(tokens)
    tree.until(lambda: holds.reached(point) == 5, "its pages are being saved")
    tree.flush()
    holds.release(point)
    tree.settle()
    tree.assert_drained()
    again = tree.run(tokens)
    assert tree.is_right(again)
    assert again.restored == (256 if point == COMMIT else 0)


def test_a_manager_that_dies_unlocks_what_is_being_saved(tree: Tree, holds: Holds) -> None:
    holds.hold(COPY_SAVE)
    tree.run(prompt(5, 320))
    tree.until(lambda: holds.reached(COPY_SAVE) == 5, "its pages are being saved")
    tree.manager.kill()
    tree.settle()
    assert tree.cache.protected_size() == 0


def test_a_manager_that_does_not_answer_unlocks_in_the_end(tree: Tree) -> None:
    tree.manager.freeze()
    tree.run(prompt(6, 320))
    assert tree.cache.protected_size() == 320
    tree.settle()
    assert tree.cache.protected_size() == 0
    assert tree.linker.saves.counters["offloads_unanswered"] == 1
    tree.manager.thaw()
    tree.assert_drained()


def test_a_pool_without_room_refuses_and_the_engine_goes_on(
    new_manager: Callable[..., Manager], new_tree: Build
) -> None:
    """All of it is smaller than a prompt."""
    tree = new_tree(new_manager(pool_size="2mib"))
    for seed in range(4):
        tree.run(prompt(30 + seed, 640))
    tree.settle()
    tree.flush()
    again = tree.run(prompt(30, 640))
    assert tree.is_right(again)
    tree.settle()
    tree.assert_drained()


def test_replaced_weights_end_the_cache(tree: Tree) -> None:
    """Pages are named by the weights that the engine started with."""
    from orbitkv.sglang.factory import stop_serving

    tokens = prompt(7, 320)
    tree.run(tokens)
    tree.settle()
    stop_serving("the weights of the running engine were replaced")
    tree.flush()
    again = tree.run(tokens)
    tree.settle()
    assert again.restored == 0
    assert tree.is_right(again)
    assert tree.linker.saves.counters["pages_saved"] == 5
    tree.enqueue(prompt(99, 320))
    assert len(tree.linker.demands) == 0


@pytest.mark.parametrize("part", ["demands", "saves"])
def test_an_error_of_ours_is_not_the_engine_s(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """The cache goes off, what waits may start, what is locked is unlocked, and all is computed."""
    tokens = prompt(8, 320)
    tree.run(tokens)
    tree.flush()
    unsaved = tree.run(prompt(9, 320))
    waiting = tree.enqueue(tokens)

    def fail(now: float) -> None:
        raise KeyError("a defect")

    def stuck() -> None:
        raise KeyError("another")

    monkeypatch.setattr(getattr(tree.linker, part), "collect", fail)
    with monkeypatch.context() as patch:
        patch.setattr(tree.linker.demands, "release_all", stuck)
        tree.settle()
        assert tree.may_start(waiting), "even if it could not be released"
    assert tree.admit(waiting) == 0
    assert tree.is_right(unsaved)
    assert tree.run(tokens).restored == 0
    assert tree.cache.protected_size() == 0
    assert "OrbitKV off, serving without it: an internal error" in caplog.text


def test_a_page_names_the_page_before_it(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain loses its tail first, so the manager has to know what hangs on what, over nodes of the tree."""
    asked: list[tuple[list[bytes], bytes | None, int]] = []
    client = tree.linker._scheduler

    class Recorder:
        def reserve(self, hashes: bytes, *, parent: bytes | None, first_depth: int, group: int) -> object:
            asked.append(([hashes[at : at + 32] for at in range(0, len(hashes), 32)], parent, first_depth))
            return client.reserve(hashes, parent=parent, first_depth=first_depth, group=group)

    monkeypatch.setattr(tree.linker.saves._reserver, "_client", Recorder())
    tokens = prompt(50, 640)
    tree.run(tokens[:192])
    tree.settle()
    tree.run(tokens)
    tree.settle()
    [(head, root, start), (tail, parent, depth)] = asked
    assert (len(head), root, start) == (3, None, 0)
    assert (len(tail), parent, depth) == (7, head[-1], 3)
