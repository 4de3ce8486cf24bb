"""An engine whose requests decode while its steps are timed from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from benches.gpu.copies import begin_copies, close_copies, end_copies, open_copies
from benches.gpu.engine import Engine
from benches.gpu.prompts import Seeds


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
        seeds = Seeds(seed)
        names = {self.add(seeds.new(prompt_tokens), 20 * steps) for _ in range(requests)}
        self._await_first(names)
        beside = Background(**background) if background else Background([])
        begun = time.perf_counter()
        intervals = self._time_steps(names, steps, beside)
        seconds = time.perf_counter() - begun
        self.abort(sorted(names | beside.names))
        self._drain()
        return {
            "intervals_ms": intervals,
            "seconds": seconds,
            "background_finished": beside.finished,
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

    def _await_first(self, names: set[str]) -> None:
        waiting = set(names)
        while waiting:
            waiting -= {out.request_id for out in self.core.step()}

    def _time_steps(self, names: set[str], steps: int, beside: Background) -> list[float]:
        following = cycle(beside.prompts) if beside.prompts else iter(())
        intervals: list[float] = []
        added = last = time.perf_counter()
        while len(intervals) < steps:
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
