"""The seam between the demo and the engine that it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Usage:
    """What an engine says of one prompt: its tokens, and those that it did not compute, wherever they came
    from."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class EngineCounters:
    """What an engine has counted since its start. In tokens, but for the last two."""

    computed_tokens: int
    local_tokens: int
    restored_tokens: int
    external_hit_tokens: int
    # Of our adapter, in the engine's metrics: bytes that landed with their checksum, pages that did not.
    verified_bytes: int
    failed_pages: int


class Stream(Protocol):
    """Reads the events of one streamed answer, in order."""

    def tokens(self, event: Mapping[str, Any]) -> Sequence[int]:
        """Output tokens that are new in the event."""

    def usage(self, event: Mapping[str, Any]) -> Usage | None:
        """What the event says of the prompt, if anything."""


class Engine(Protocol):
    """One serving engine."""

    # As the manager calls it.
    name: str
    # Programs of the engine's environment that the demo needs, beside ours.
    programs: Sequence[str]
    environment: Mapping[str, str]
    path: str

    def command(self, programs: Path, model: Path, host: str, port: int) -> list[object]:
        """Starts it, after `orbitkv run …`."""

    def body(self, prompt: Sequence[int], salt: str | None) -> dict[str, Any]:
        """A request for `OUTPUT_TOKENS` greedy tokens, as a stream. With a `salt` nothing cached before can
        serve it."""

    def stream(self) -> Stream:
        """A reader for one answer."""

    def counters(self, metrics: str) -> EngineCounters:
        """From its `/metrics`."""
