"""An SSD that does not get on, while it writes (case A-22) and while it reads (case A-61): nobody waits for
it, nothing comes from a page that is not whole, and what comes late is kept. The disk is real; its thread is
held where it gives a page to the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.case_end import assert_case_end
from support.engine import Engine
from support.holds import SSD_READ, SSD_WRITE
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, restorable_tokens
from support.tier import Counted, reads_pending, stored, wait_written
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 300
HIT = restorable_tokens(TOKENS)
PAGES = HIT // BLOCK_TOKENS
PAGE_BYTES = 64 << 10
HASTY_MS, PATIENT_MS = 150, 60_000
# Far longer than the hasty one waits, and than computing takes.
PATIENT_S = 2.0


@pytest.fixture(scope="module", params=[HASTY_MS, PATIENT_MS], ids=["hasty", "patient"])
def deadline_ms(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def engine(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    tmp_path_factory: pytest.TempPathFactory,
    deadline_ms: int,
) -> Engine:
    directory: Path = tmp_path_factory.mktemp("ssd") / "cache"
    flags = ("--ssd-cache-path", str(directory), "--ssd-cache-capacity", "512mib")
    manager = new_manager(pool_size="64mib", flags=flags)
    return new_engine(manager, connector={"verify_restore": "all", "lookup_deadline_ms": deadline_ms})


def pages_on_ssd(engine: Engine) -> int:
    """Pages that may be read from it."""
    return engine.manager.status()["tier"]["pages"]


def test_case_a22_a_page_in_writing_is_not_read_from_the_disk(engine: Engine, new_prompt: Prompts) -> None:
    tokens, manager = new_prompt(TOKENS), engine.manager
    engine.reset()
    counted, before = Counted(engine), pages_on_ssd(engine)
    with manager.holds.held(SSD_WRITE):
        cold = engine.run(tokens)
        assert cold.cached == 0
        manager.holds.wait_reached(SSD_WRITE)
        pending = manager.status()["tier"]["write_queue_pending"]
        assert pending >= PAGES, "control: all of it is still being written"
        # Memory is dropped between the two requests: pages that are being written stay in it.
        manager.drop_memory()
        engine.reset()
        engine.kv.poison()
        again = engine.run(tokens)
        assert again.tokens == cold.tokens
        assert (again.cached, counted["read_pages"]) == (HIT, 0), "from memory, not from the disk"
        assert pages_on_ssd(engine) == before, "none can be read before it is whole"
    wait_written(engine)
    assert pages_on_ssd(engine) - before >= PAGES
    manager.drop_memory()
    # The third one is the control: now there is nothing but the disk.
    assert_case_end(engine, tokens, cold)
    assert counted["read_pages"] == counted["tier_pages"] == PAGES


def test_case_a22_a_manager_that_dies_while_it_writes_leaves_no_page(
    engine: Engine, new_prompt: Prompts
) -> None:
    whole, cut = new_prompt(TOKENS), new_prompt(TOKENS, 1)
    (control,) = stored(engine, [whole])
    manager, before = engine.manager, pages_on_ssd(engine)
    manager.holds.hold(SSD_WRITE)
    cold = engine.run(cut)
    manager.holds.wait_reached(SSD_WRITE)
    manager.kill()
    manager.start()
    wait_until(lambda: manager.status()["ssd"][0]["recovery"]["finished"], "all is found")
    assert manager.counters()["found_pages"] == before
    engine.wait_active()
    for tokens, expected, cached in ((cut, cold.tokens, 0), (whole, control, HIT)):
        engine.reset()
        engine.kv.poison()
        result = engine.run(tokens)
        assert (result.cached, result.tokens) == (cached, expected)
    wait_written(engine)
    manager.drop_memory()
    assert_case_end(engine, cut, cold)


def test_case_a61_first_token_does_not_wait_for_the_ssd(
    engine: Engine, new_prompt: Prompts, deadline_ms: int
) -> None:
    """The patient engine is the control: it waits for as long as the disk does."""
    tokens, manager = new_prompt(TOKENS), engine.manager
    (cold,) = stored(engine, [tokens])
    counted = Counted(engine)
    with manager.holds.held(SSD_READ):
        engine.add("slow", tokens)
        if deadline_ms == HASTY_MS:
            result = engine.finish(["slow"])["slow"]
            assert (result.cached, result.tokens) == (0, cold)
            assert counted["restored_pages"] == 0
            assert reads_pending(engine) == PAGES, "the reads have not ended"
            reserved = manager.status()["query"]["reserved_bytes"]
            assert reserved >= PAGES * PAGE_BYTES, "their slots are reserved until they have"
        else:
            with pytest.raises(AssertionError, match="not within"):
                engine.step_until(lambda: engine.generated("slow") > 0, "the first token", within_s=PATIENT_S)
            assert reads_pending(engine) == PAGES
    if deadline_ms == PATIENT_MS:
        result = engine.finish(["slow"])["slow"]
        assert (result.cached, result.tokens) == (HIT, cold)
        assert counted["restored_pages"] == PAGES
    wait_until(lambda: reads_pending(engine) == 0, "the late reads end")
    engine.settle()
    manager.assert_drained()
    # What came late is kept: the next request reads nothing.
    assert counted["read_pages"] == PAGES
    assert_case_end(engine, tokens, cold)
    assert counted["read_pages"] == PAGES, "each page was read once"
    assert counted["adapter_lookups"] == counted["queries"] == 2
