"""What saving costs an engine that finds nothing: a row of `make bench`, reported and not gated.

Run by `make bench` with the engine environment's Python, with OrbitKV, `tests/engine` and `tests/shared` on
its paths.

Two engines of the tiny model, each in a process of its own: one without a connector, one that saves every
page. They answer the same prompts, all new, in turn; the median of five rounds counts, after one to warm up.
A round ends when its last page is saved. The tiny model computes little for each byte that it saves, so the
cost is far above that of a real one.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.child import Child
from support.engine import Engine, EngineSettings
from support.environment import set_engine_environment
from support.manager import Manager
from support.prompts import BLOCK_TOKENS, prompt

NAME = "tiny engine, all misses: saving against none"
ROUNDS = 5
PROMPTS = 16
PROMPT_TOKENS = 512
OUTPUT_TOKENS = 16
LEAST_SAVED = PROMPTS * PROMPT_TOKENS // BLOCK_TOKENS
# Three rounds fill it: the later ones evict, as a cache in use does.
POOL = "128mib"


class Bench:
    """An engine, and the speed at which it answers new prompts."""

    def __init__(self, manager_directory: Path | None) -> None:
        manager = None if manager_directory is None else Manager(manager_directory).attach()
        self._engine = Engine(manager, EngineSettings(blocks=512))

    def tokens_per_s(self, number: int) -> float:
        """Prompt and output tokens of one round by its seconds; fails if anything was found in a cache."""
        prompts = [prompt(number * PROMPTS + index, PROMPT_TOKENS) for index in range(PROMPTS)]
        begun = time.perf_counter()
        results = self._engine.generate(prompts, OUTPUT_TOKENS)
        seconds = time.perf_counter() - begun
        cached = sum(result.cached for result in results)
        if cached:
            raise RuntimeError(f"{cached} tokens of new prompts came from a cache: this is no run of misses")
        return PROMPTS * (PROMPT_TOKENS + OUTPUT_TOKENS) / seconds


def measure(directory: Path) -> tuple[list[float], list[float]]:
    """Tokens a second of each round with saving and without; fails unless every whole page was saved."""
    manager = Manager(directory, pool_size=POOL).start()
    children: list[Child] = []
    try:
        children += [Child(directory, Bench, directory), Child(directory, Bench, None)]
        speeds: list[tuple[float, ...]] = []
        for number in range(ROUNDS + 1):
            before = sealed_pages(manager)
            speeds.append(tuple(child.call("tokens_per_s", number) for child in children))
            saved = sealed_pages(manager) - before
            if saved < LEAST_SAVED:
                raise RuntimeError(
                    f"{saved} of at least {LEAST_SAVED} pages were saved: this is no run of saves"
                )
        ours, native = zip(*speeds[1:], strict=True)
        return list(ours), list(native)
    finally:
        for child in children:
            child.close()
        manager.stop()


def sealed_pages(manager: Manager) -> int:
    """Pages that became visible since the manager started."""
    return manager.counters()["committed_pages"]


def publish(summary: Path, ours: list[float], native: list[float]) -> None:
    """Prints the row under the table of the others and adds it to their file."""
    median, limit = statistics.median(ours), statistics.median(native)
    low, high = min(ours), max(ours)
    row: dict[str, Any] = {"name": NAME, "ours": median, "low": low, "high": high}
    row |= {"limit": limit, "unit": "tok/s", "ratio": median / limit}
    rows = json.loads(summary.read_text()) if summary.exists() else []
    rows = [other for other in rows if other["name"] != NAME] + [row]
    summary.parent.mkdir(parents=True, exist_ok=True)
    summary.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    spread = f"{low:.0f}..{high:.0f}"
    line = f"{NAME:<45} {median:>8.0f} {spread:>15} {limit:>8.0f} {'tok/s':<9} {median / limit:>6.2f}"
    print(f"{line} {'-':>7}  reported")


def main() -> None:
    """Measures and publishes."""
    set_engine_environment()
    with tempfile.TemporaryDirectory(prefix="b-") as directory:
        ours, native = measure(Path(directory))
    publish(Path(sys.argv[1]), ours, native)


if __name__ == "__main__":
    main()
