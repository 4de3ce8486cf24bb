"""An engine whose requests decode while its steps are timed from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from benches.gpu.copies import begin_copies, close_copies, end_copies, open_copies
from benches.gpu.engine import Engine
from benches.gpu.grower import is_registered, registered
from benches.gpu.prompts import Seeds

# The connector is asked after so many steps what it has registered.
ASK_STEPS = 50
REGISTERS_WITHIN_S = 20.0


@dataclass
class Background:
    """Requests beside those that decode: `depth` of `prompts`, in turn, are under way at a time, and a new
    one comes no sooner than `gap_ms` after the one before."""

    prompts: list[list[int]]
    depth: int = 1
    gap_ms: float = 0.0
    names: set[str] = field(default_factory=set)
    finished: int = 0


class Decoder(Engine):
    """`decode` times the tokens of requests as they reach the front end."""

    def decode(
        self,
        requests: int,
        prompt_tokens: int,
        steps: int,
        seed: int,
        background: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Milliseconds between the outputs of `requests` requests, once all decode, for so many outputs;
        and what the background had meanwhile."""
        beside = Background(**background) if background else Background([])
        with self._decoding(requests, prompt_tokens, steps, seed) as names:
            begun = time.perf_counter()
            intervals = self._time_steps(names, lambda count: count < steps, beside)
            seconds = time.perf_counter() - begun
            self.abort(sorted(beside.names))
        return {
            "intervals_ms": intervals,
            "seconds": seconds,
            "background_finished": beside.finished,
        }

    def decode_until_registered(
        self, requests: int, prompt_tokens: int, steps: int, seed: int, until_bytes: int
    ) -> dict[str, Any]:
        """As `decode` for at least so many outputs, and on until the connector has registered `until_bytes`
        with its device and is registering nothing, for `REGISTERS_WITHIN_S` at most; and how many bytes were
        registered meanwhile. Asking the connector takes the engine some time, which is in the milliseconds:
        a step that it delays at that moment must not go unseen."""
        with self._decoding(requests, prompt_tokens, steps, seed) as names:
            before = self.rpc(registered)
            begun = time.perf_counter()
            is_over = _Registered(lambda: self.rpc(registered), until_bytes, begun + REGISTERS_WITHIN_S)
            intervals = self._time_steps(
                names, lambda count: not is_over(count) or count < steps, Background([])
            )
            seconds = time.perf_counter() - begun
        more = {name: value - before[name] for name, value in self.rpc(registered).items()}
        return {
            "intervals_ms": intervals,
            "seconds": seconds,
            "registered_bytes": more.get("registered_bytes", 0),
        }

    def open_copies(self, socket: str) -> dict[str, Any]:
        """Makes copies ready that run beside the requests and belong to none, by clients of the manager on
        `socket`; how fast they were while the pool grew for them."""
        blocks = self.core.vllm_config.cache_config.num_gpu_blocks
        return self.rpc(open_copies, socket, blocks)

    def decode_beside_copies(
        self, requests: int, prompt_tokens: int, steps: int, seed: int
    ) -> dict[str, Any]:
        """As `decode`; and what was copied each way from before the first prompt to the end."""
        self.rpc(begin_copies)
        result = self.decode(requests, prompt_tokens, steps, seed)
        return {**result, "copies": self.rpc(end_copies)}

    def close_copies(self) -> None:
        """Gives back what `open_copies` took."""
        self.rpc(close_copies)

    @contextmanager
    def _decoding(self, requests: int, prompt_tokens: int, steps: int, seed: int) -> Iterator[set[str]]:
        """Names of requests that all decode, and end with it."""
        seeds = Seeds(seed)
        names = {self.add(seeds.new(prompt_tokens), 20 * steps) for _ in range(requests)}
        try:
            self._await_first(names)
            yield names
        finally:
            self.abort(sorted(names))
            self._drain()

    def _await_first(self, names: set[str]) -> None:
        waiting = set(names)
        while waiting:
            waiting -= {out.request_id for out in self.core.step()}

    def _time_steps(self, names: set[str], goes_on: Callable[[int], bool], beside: Background) -> list[float]:
        """Milliseconds between their outputs, for as long as `goes_on` says of how many there are."""
        following = cycle(beside.prompts) if beside.prompts else iter(())
        intervals: list[float] = []
        added = last = time.perf_counter()
        while goes_on(len(intervals)):
            now = time.perf_counter()
            if len(beside.names) < beside.depth and (now - added) * 1000 >= beside.gap_ms:
                added = now
                self._add_next(following, beside)
            outputs = self.core.step()
            now = time.perf_counter()
            if any(out.request_id in names for out in outputs):
                intervals.append((now - last) * 1000)
                last = now
            for out in outputs:
                if out.request_id in beside.names and out.finished:
                    beside.names.discard(out.request_id)
                    beside.finished += 1
        return intervals

    def _add_next(self, following: Iterator[list[int]], beside: Background) -> None:
        tokens = next(following, None)
        if tokens is not None:
            beside.names.add(self.add(tokens, 1))

    def _drain(self) -> None:
        while self.core.has_unfinished_requests():
            self.core.step()
        self.settle()


@dataclass
class _Registered:
    """Whether all is registered, looked at every `ASK_STEPS` steps."""

    look: Callable[[], dict[str, int]]
    until_bytes: int
    deadline: float
    looked_at: int = 0
    seen: bool = False

    def __call__(self, count: int) -> bool:
        if count >= self.looked_at + ASK_STEPS:
            self.looked_at = count
            self.seen = is_registered(self.look(), self.until_bytes)
        return self.seen or time.perf_counter() > self.deadline
