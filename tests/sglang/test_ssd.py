"""Pages that are on the SSD alone: restored with equal tokens; a page that cannot be read is never promised
(case A-18), and a disk that is slow makes nobody wait (case A-61)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.holds import SSD_FAULT, SSD_READ
from support.manager import Manager
from support.sglang import PAGE_TOKENS, Answer, Sglang, restorable
from support.sglang_end import assert_case_end
from support.sglang_ssd import CACHE, leave_on_ssd, new_ssd_manager, reads_pending
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 400
HIT = restorable(TOKENS)
PAGES = HIT // PAGE_TOKENS
HASTY_MS, PATIENT_MS = 300, 60_000


@pytest.fixture(scope="module")
def manager(new_manager: Callable[..., Manager], tmp_path_factory: pytest.TempPathFactory) -> Manager:
    return new_ssd_manager(new_manager, tmp_path_factory)


@pytest.fixture(scope="module")
def engine(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager, config={"lookup_deadline_ms": HASTY_MS})


@pytest.fixture(scope="module")
def patient(manager: Manager, new_engine: Callable[..., Sglang]) -> Sglang:
    return new_engine(manager, config={"lookup_deadline_ms": PATIENT_MS})


def stored(engine: Sglang, tokens: list[int]) -> Answer:
    """Computes and saves a prompt, and leaves it on the SSD alone."""
    cold = engine.run(tokens)
    leave_on_ssd(engine)
    return cold


def test_pages_come_back_from_the_ssd(engine: Sglang, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    before = engine.manager.counters()["tier_pages"]
    again = engine.run(tokens)
    assert (again.restored, again.tokens) == (HIT, cold.tokens)
    assert engine.manager.counters()["tier_pages"] - before == PAGES
    engine.manager.assert_drained()


@pytest.mark.parametrize("fault", ["eio", "short"])
def test_case_a18_a_page_that_cannot_be_read_is_not_promised(
    engine: Sglang, new_prompt: Prompts, fault: str
) -> None:
    """Found by the lookup, gone when it is read. SGLang ends if a load fails, so what is promised is what was
    read: the prefix before the page, and the rest is computed."""
    tokens = new_prompt(TOKENS)
    cold = stored(engine, tokens)
    with engine.manager.holds.switched(SSD_FAULT, f"{CACHE} read {fault} 1"):
        again = engine.run(tokens)
    assert again.tokens == cold.tokens
    assert again.restored < HIT, "control: without the fault all of it is restored"
    assert engine.is_running
    assert_case_end(engine, tokens, cold)


def test_case_a61_first_token_does_not_wait_for_the_ssd(engine: Sglang, new_prompt: Prompts) -> None:
    tokens, manager = new_prompt(TOKENS), engine.manager
    cold = stored(engine, tokens)
    with manager.holds.held(SSD_READ):
        answer = engine.run(tokens)
        assert (answer.restored, answer.tokens) == (0, cold.tokens)
        assert reads_pending(manager) > 0, "the reads have not ended"
    wait_until(lambda: reads_pending(manager) == 0, "the late reads end")
    # What came late is kept: the next request finds it in memory.
    assert_case_end(engine, tokens, cold)


def test_case_a61_who_is_patient_waits(patient: Sglang, new_prompt: Prompts) -> None:
    """The control: with a long deadline the request waits for the disk, and for nobody else's sake."""
    tokens, manager = new_prompt(TOKENS), patient.manager
    cold = stored(patient, tokens)
    with manager.holds.held(SSD_READ):
        waiting = patient.add(tokens)
        manager.holds.wait_reached(SSD_READ)
        # Several passes of the scheduler, for others.
        for index in range(5):
            patient.run(new_prompt(TOKENS, 1 + index))
        assert not waiting.done()
    answer = waiting.result()
    assert (answer.restored, answer.tokens) == (HIT, cold.tokens)
    assert_case_end(patient, tokens, cold)
