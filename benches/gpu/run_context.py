"""What the parts of a run share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benches.gpu.budget import Budget
from benches.gpu.child import ChildError
from benches.gpu.prompts import Seeds
from benches.gpu.rows import Rows
from benches.gpu.settings import EngineSettings, dry
from benches.gpu.systems import Site, System, UnavailableError, begin


@dataclass
class Run:
    """One run: rows, time, place and what was asked for."""

    rows: Rows
    budget: Budget
    site: Site
    systems: tuple[str, ...]
    seeds: Seeds
    is_dry_run: bool = False
    # Prompt lengths of `ttft`, where not all are asked for.
    lengths: tuple[int, ...] = ()
    # Starts a system of the engine that the run is about.
    begin: Callable[..., System] = begin

    def settings(self, **values: Any) -> EngineSettings:
        """Settings of a vLLM engine, tiny in a dry run."""
        settings = EngineSettings(**values)
        return dry(settings) if self.is_dry_run else settings

    def tokens(self, tokens: int) -> int:
        """A prompt length; a sixteenth of it in a dry run, of at least two blocks."""
        return max(tokens // 16, 192) if self.is_dry_run else tokens

    @contextmanager
    def started(self, part: str, names: Iterable[str], settings: Any) -> Iterator[list[System]]:
        """These systems side by side on the one GPU, started together. One that cannot be had is a row with
        its reason, and left out."""
        begun: list[System] = []
        running: list[System] = []
        try:
            for name in names:
                try:
                    begun.append(self.begin(name, settings, self.site))
                except UnavailableError as reason:
                    self.missing(part, name, str(reason))
            for system in begun:
                try:
                    running.append(system.wait_started())
                    self.rows.add(
                        "start", for_part=part, system=system.name, beside=len(begun), **system.facts
                    )
                except (UnavailableError, ChildError) as reason:
                    self.missing(part, system.name, str(reason))
            yield running
        finally:
            for system in begun:
                system.close()

    def missing(self, part: str, system: str, reason: str) -> None:
        """A system that is not measured."""
        self.rows.add(part, system=system, kind="missing", reason=reason)
        self.say(
            f"{part}: {system} is left out: {reason.strip().splitlines()[-1] if reason else 'no reason'}"
        )

    def say(self, line: str) -> None:
        """A line for whoever waits."""
        print(line, file=sys.stderr, flush=True)


def rotated(systems: list[System], turn: int) -> list[System]:
    """The same, another one first each time."""
    first = turn % len(systems) if systems else 0
    return systems[first:] + systems[:first]
