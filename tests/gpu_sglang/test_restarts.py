"""Four identical prompts of whole pages at once: after the engine has restarted, from memory; after the
manager has restarted as well, from the SSD. All finish with the tokens that an engine without a cache
computes, and the pages are restored once. The tests tell one story, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from benches.gpu.process import Manager, wait_until
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.systems import Site, System
from support import GENERATED, Engines, ask, forget, store, wait_active, wait_drained

Prompts = Callable[..., list[int]]
TOKENS, DRY_TOKENS = 4096, 640
ALIKE = 4


@dataclass
class Story:
    """A manager, the engine of the moment, a prompt and what follows it."""

    manager: Manager
    engine: System
    native: System
    tokens: list[int] = field(default_factory=list)
    expected: list[int] = field(default_factory=list)

    def counters(self) -> dict[str, int]:
        """Of the manager."""
        return self.manager.status()["counters"]

    def assert_four_restore_once(self) -> None:
        """All four at once."""
        assert self.tokens, "nothing was saved before"
        hit = restorable_tokens(len(self.tokens))
        asked = self.engine.engine.call("ask_all", [self.tokens] * ALIKE, GENERATED, within_s=300)
        self.engine.wait_saved()
        answers = asked["answers"]
        assert [answer["tokens"] for answer in answers] == [self.expected] * ALIKE
        assert [answer["cached"] for answer in answers] == [hit] * ALIKE
        # Whoever comes second finds the pages in the engine.
        assert sum(answer["restored"] for answer in answers) == hit
        wait_drained(self.manager)


@pytest.fixture(scope="module")
def story(engines: Engines, site: Site) -> Story:
    flags = ["--ssd-cache-path", str(site.work / "ssd")]
    flags += ["--ssd-cache-capacity", "8gib", "--ssd-min-free", "0"]
    manager = engines.new_manager(*flags)
    native, engine = engines.begin(None), engines.begin(manager)
    return Story(manager, engine.wait_started(), native.wait_started())


def test_from_memory_after_the_engine_has_restarted(
    story: Story, engines: Engines, new_prompt: Prompts
) -> None:
    story.tokens = new_prompt(DRY_TOKENS if engines.settings.is_dry_run else TOKENS)
    story.expected = ask(story.native, story.tokens)["tokens"]
    assert len(set(story.expected)) > GENERATED // 4
    cold = ask(story.engine, story.tokens)
    assert (cold["cached"], cold["tokens"]) == (0, story.expected)
    store(story.engine, story.tokens)
    story.engine.close()
    story.engine = engines.begin(story.manager).wait_started()
    read = story.counters()["read_pages"]
    story.assert_four_restore_once()
    assert story.counters()["read_pages"] == read, "memory alone was needed"


def test_from_the_ssd_after_the_manager_has_restarted_too(story: Story, engines: Engines) -> None:
    forget(story.engine)
    story.engine.close()
    story.manager.restart()
    wait_until(
        lambda: all(row["recovery"]["finished"] for row in story.manager.status()["ssd"]),
        "the SSD was looked through",
    )
    story.engine = engines.begin(story.manager).wait_started()
    wait_active(story.manager)
    story.assert_four_restore_once()
    assert story.counters()["read_pages"] >= restorable_tokens(len(story.tokens)) // BLOCK_TOKENS


def test_control_without_a_cache_all_four_compute_the_same(story: Story) -> None:
    """What is compared above can tell restored prompts from computed ones, and tokens do not depend on how
    many are in the batch."""
    assert story.tokens, "nothing was saved before"
    story.native.engine.call("reset")
    asked = story.native.engine.call("ask_all", [story.tokens] * ALIKE, GENERATED, within_s=300)
    assert [answer["tokens"] for answer in asked["answers"]] == [story.expected] * ALIKE
    assert sum(answer["restored"] for answer in asked["answers"]) == 0
