"""How fast the engine computes prompts, from its own steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Of fewer tokens a step's time is mostly the same whatever it computes, and says nothing of a prompt's.
MIN_STEP_TOKENS = 128
# Fewer tokens of one request are decoding, with speculation or without.
MIN_CHUNK_TOKENS = 16
# An engine has two or three steps under way.
MAX_UNDER_WAY = 16


@dataclass(frozen=True)
class _Step:
    begun: float
    prompt_tokens: int


class PrefillTimer:
    """Times steps. Of steps that overlap, as with asynchronous scheduling, each is given the time since the
    end of the one before."""

    def __init__(self) -> None:
        self._under_way: dict[int, _Step] = {}
        self._last_end = float("-inf")

    def begin(self, step: int, scheduled: Mapping[str, int], *, has_sync_loads: bool, now: float) -> None:
        """A step with so many tokens of each request begins. One that waits for restores inside the forward
        pass is not measured."""
        prompt_tokens = sum(tokens for tokens in scheduled.values() if tokens >= MIN_CHUNK_TOKENS)
        if has_sync_loads or prompt_tokens < MIN_STEP_TOKENS:
            prompt_tokens = 0
        self._under_way[step] = _Step(now, prompt_tokens)
        if len(self._under_way) > MAX_UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]

    def end(self, step: int, now: float) -> tuple[int, float] | None:
        """A step has ended. Tokens and seconds, if it computed enough of prompts."""
        ended = self._under_way.pop(step, None)
        for older in [number for number in self._under_way if number < step]:
            del self._under_way[older]
        begun = max(ended.begun, self._last_end) if ended is not None else now
        self._last_end = now
        if ended is None or ended.prompt_tokens == 0 or now <= begun:
            return None
        return ended.prompt_tokens, now - begun
