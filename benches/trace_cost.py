"""What the trace of transfers costs an engine whose requests are all restored: reported and not gated.

Run with the engine environment's Python, with OrbitKV, `tests/engine` and `tests/shared` on its paths.

Two engines of the tiny model, each in a process of its own, on one manager: one traces, one does not. Both
restore the same stored prompts, in turn, and the first turn changes hands; the medians of the rounds count,
after one to warm up. The tiny model computes little for each request, so the share of the trace is far above
that of a real one. The cost of one event on the engine's own thread is measured beside it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from support.child import Child
from support.engine import Engine, EngineSettings
from support.environment import set_engine_environment
from support.manager import Manager
from support.prompts import prompt, restorable_tokens

ROUNDS = 41
PROMPTS = 48
PROMPT_TOKENS = 512
# queued, read_start, host_ready, restore_submit, restore_complete, gpu_ready, first_use
EVENTS_PER_REQUEST = 7
LOOPS = 20
EVENTS_PER_LOOP = 10_000


class Bench:
    """An engine, and the time it takes to answer stored prompts."""

    def __init__(self, directory: Path, trace: Path | None) -> None:
        connector = {} if trace is None else {"trace_transfers": True, "trace_path": str(trace)}
        self._manager = Manager(directory).attach()
        self._engine = Engine(self._manager, EngineSettings(blocks=1024, connector=connector))
        self._prompts = [prompt(index, PROMPT_TOKENS) for index in range(PROMPTS)]

    def store(self) -> None:
        """Computes and saves the prompts."""
        self._engine.generate(self._prompts, 1)

    def ms_per_request(self) -> tuple[float, float]:
        """By the clock and of the process's CPU time, in one round from an empty cache of the engine's own;
        fails unless everything was restored."""
        self._engine.reset()
        names = [f"request-{index}" for index in range(PROMPTS)]
        begun, cpu_begun = time.perf_counter(), time.process_time()
        for name, tokens in zip(names, self._prompts, strict=True):
            self._engine.add(name, tokens, 1)
        results = self._engine.finish(names)
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        short = [
            result.cached for result in results.values() if result.cached != restorable_tokens(PROMPT_TOKENS)
        ]
        if short:
            raise RuntimeError(f"{len(short)} prompts were not restored whole: this is no run of restores")
        return seconds * 1000 / PROMPTS, cpu_seconds * 1000 / PROMPTS


def measure_engine(directory: Path) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Milliseconds a request with the trace and without, of each round; fails unless all was traced."""
    manager = Manager(directory, pool_size="128mib").start()
    trace = directory / "trace.jsonl"
    children: list[Child] = []
    try:
        children += [Child(directory, Bench, directory, trace), Child(directory, Bench, directory, None)]
        children[0].call("store")
        rounds = []
        for number in range(ROUNDS + 1):
            turns = (0, 1) if number % 2 else (1, 0)
            times = {turn: children[turn].call("ms_per_request") for turn in turns}
            rounds.append((times[0], times[1]))
        time.sleep(1)
        traced = sum(1 for _ in trace.open())
        if traced < (ROUNDS + 1) * PROMPTS * EVENTS_PER_REQUEST:
            raise RuntimeError(f"{traced} events were traced, which is not {EVENTS_PER_REQUEST} a request")
        return rounds[1:]
    finally:
        for child in children:
            child.close()
        manager.stop()


def measure_event(directory: Path) -> tuple[float, float]:
    """Microseconds of one event on the thread that calls, with the trace and without; fails if one was
    dropped, which would cost less."""
    from orbitkv.engine.trace import MAX_BUFFERED, NoTrace, Trace
    from orbitkv.vllm.log import once

    assert EVENTS_PER_LOOP < MAX_BUFFERED
    path = directory / "events.jsonl"
    on, off = Trace(str(path), once, page_bytes=65536, side="scheduler"), NoTrace()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(LOOPS):
        for trace, into in zip((on, off), times, strict=True):
            begun = time.perf_counter()
            for _ in range(EVENTS_PER_LOOP):
                trace.event("queued", "request-0", pages=16)
            into.append((time.perf_counter() - begun) * 1e6 / EVENTS_PER_LOOP)
            time.sleep(0.5)
    on.close()
    if sum(1 for _ in path.open()) != LOOPS * EVENTS_PER_LOOP:
        raise RuntimeError("not every event was written: a dropped one costs less")
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Measures and prints one JSON object."""
    set_engine_environment()
    with tempfile.TemporaryDirectory(prefix="b-") as name:
        rounds = measure_engine(Path(name))
        event_on, event_off = measure_event(Path(name))
    row: dict[str, Any] = {"rounds": ROUNDS}
    for index, name in enumerate(("ms_per_request", "cpu_ms_per_request")):
        on, off = ([times[turn][index] for times in rounds] for turn in (0, 1))
        low, ratio, high = statistics.quantiles([a / b for a, b in zip(on, off, strict=True)])
        row[name] = {"on": round(statistics.median(on), 3), "off": round(statistics.median(off), 3)}
        row[name] |= {"ratio": round(ratio, 3), "quartiles": [round(low, 3), round(high, 3)]}
    row["us_per_event"] = {"on": round(event_on, 2), "off": round(event_off, 3)}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
