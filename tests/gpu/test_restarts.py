"""What was saved outlives the engine, from memory, and the manager, from the SSD. The tests tell one story,
in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from benches.gpu.process import Manager, wait_until
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.settings import EngineSettings
from benches.gpu.systems import Site, System
from support import Engines, ask, forget, hit, store, wait_active, wait_drained

Prompts = Callable[..., list[int]]
TOKENS = 4096
HIT = restorable_tokens(TOKENS)
PAGES = HIT // BLOCK_TOKENS
COUNT = 2


@dataclass
class Story:
    """A manager, the engine of the moment, and prompts with what follows them."""

    manager: Manager
    engine: System
    kept: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def counters(self) -> dict[str, int]:
        """Of the manager."""
        return self.manager.status()["counters"]

    def assert_all_restored(self) -> None:
        """Each prompt comes back whole, with the same tokens."""
        assert len(self.kept) == COUNT, "nothing was saved before"
        before = self.counters()["restored_pages"]
        for tokens, expected in self.kept:
            answer = ask(self.engine, tokens)
            assert (answer["cached"], answer["tokens"]) == (HIT, expected)
        assert self.counters()["restored_pages"] - before == COUNT * PAGES
        wait_drained(self.manager)


@pytest.fixture(scope="module")
def engines(site: Site, settings: EngineSettings) -> Iterator[Engines]:
    """As everywhere, but that all is read that was stored: a prompt of 4,096 tokens is computed in 0.1 s, and
    the disks of many GPU hosts take longer to read it."""
    connector = {**site.connector, "refuse_slow_restores": False}
    made = Engines(replace(site, connector=connector), settings)
    yield made
    made.close()


@pytest.fixture(scope="module")
def story(engines: Engines, site: Site) -> Story:
    flags = ["--ssd-cache-path", str(site.work / "ssd")]
    flags += ["--ssd-cache-capacity", "8gib", "--ssd-min-free", "0"]
    manager = engines.new_manager(*flags)
    return Story(manager, engines.start(manager))


def test_an_engine_that_restarts_finds_its_pages_in_memory(
    story: Story, engines: Engines, new_prompt: Prompts
) -> None:
    for index in range(COUNT):
        tokens = new_prompt(TOKENS, index)
        assert ask(story.engine, tokens)["cached"] == 0
        story.kept.append((tokens, hit(story.engine, tokens)))
        store(story.engine, tokens)
    story.engine.close()
    story.engine = engines.start(story.manager)
    read = story.counters()["read_pages"]
    story.assert_all_restored()
    assert story.counters()["read_pages"] == read, "memory alone was needed"


def test_a_manager_that_restarts_finds_them_on_the_ssd(story: Story) -> None:
    forget(story.engine)
    story.manager.restart()
    wait_until(
        lambda: all(row["recovery"]["finished"] for row in story.manager.status()["ssd"]),
        "the SSD was looked through",
    )
    wait_active(story.manager)
    story.assert_all_restored()
    assert story.counters()["read_pages"] >= COUNT * PAGES


def test_control_after_a_reset_of_everything_they_are_computed(story: Story) -> None:
    assert story.kept, "nothing was saved before"
    story.engine.engine.call("reset", reset_connector=True)
    tokens, expected = story.kept[0]
    assert ask(story.engine, tokens)["cached"] == 0
    assert hit(story.engine, tokens) == expected
