"""What it costs an engine to register a large pool that is full already, and to start with the connector.

An engine fills the pool and ends. The next one starts on the same manager, decodes, and asks for all of it
at once: every segment is mapped and registered while the steps of the decoding requests are timed. Starts
are timed with and without the connector in turn, eager, one at a time."""

from __future__ import annotations

import time
from typing import Any

from benches.gpu.growth import grow
from benches.gpu.run_context import Run
from benches.gpu.settings import GIB, EngineSettings
from benches.gpu.systems import NATIVE, ORBITKV, System, begin

PART = "registration"
ESTIMATE_S = 150
POOL_BYTES = 20 * GIB
FILL_BYTES = 16 * GIB
PROMPT_TOKENS = 16 * 1024
REQUESTS, DECODE_TOKENS, STEPS = 8, 512, 600
# The pool is registered in the background; a start that waited for it would show in the starts below.
STARTS = 3
START_S = 45


def measure(run: Run) -> None:
    """Rows of the steps beside the registration, then of the starts."""
    settings = run.settings(is_eager=True)
    manager = run.site.new_manager(pool_bytes=GIB if run.is_dry_run else POOL_BYTES)
    try:
        prompts = _fill(run, settings, manager)
        _registered_beside(run, settings, manager, prompts)
        for number in range(STARTS):
            for name in (NATIVE, ORBITKV) if number % 2 == 0 else (ORBITKV, NATIVE):
                if run.budget.allows(START_S):
                    _started(run, settings, manager, name, number)
    finally:
        manager.close()


def _fill(run: Run, settings: EngineSettings, manager: Any) -> list[list[int]]:
    tokens = run.tokens(PROMPT_TOKENS)
    fill = GIB // 16 if run.is_dry_run else FILL_BYTES
    count = -(-fill // (tokens * settings.shape.kv_bytes_per_token()))
    prompts = [run.seeds.new(tokens + 1) for _ in range(count)]
    system = begin(ORBITKV, settings, run.site, manager=manager).wait_started()
    try:
        grow(system, fill + fill // 8)
        for prompt in prompts:
            system.engine.call("ask", prompt, within_s=120)
            system.wait_saved(patiently=True)
    finally:
        system.close()
    return prompts


def _registered_beside(run: Run, settings: EngineSettings, manager: Any, prompts: list[list[int]]) -> None:
    system = begin(ORBITKV, settings, run.site, manager=manager).wait_started()
    try:
        # Decoding alone comes second: only the first use of the pool registers it.
        for beside in (True, False):
            background = {"prompts": prompts, "depth": len(prompts), "gap_ms": 0.0} if beside else None
            steps = STEPS // 10 if run.is_dry_run else STEPS
            before = manager.status()["counters"]["restored_pages"]
            result = system.engine.call(
                "decode", REQUESTS, run.tokens(DECODE_TOKENS), steps, 8_000_000, background
            )
            values = {
                "background": beside,
                "intervals_ms": [round(value, 3) for value in result["intervals_ms"]],
                "restored_pages": manager.status()["counters"]["restored_pages"] - before,
                "pool_bytes": manager.status()["pool"]["bytes"],
            }
            run.rows.add(PART, system=system.name, kind="steps", **values)
    finally:
        system.close()


def _started(run: Run, settings: EngineSettings, manager: Any, name: str, number: int) -> None:
    begun = time.perf_counter()
    system: System = begin(name, settings, run.site, manager=manager if name == ORBITKV else None)
    try:
        system.wait_started()
        facts = system.facts
        whole_s = round(time.perf_counter() - begun, 2)
        values = {"start_s": facts["start_s"], "import_s": facts["import_s"], "process_s": whole_s}
        run.rows.add(PART, system=name, kind="start", round=number, **values)
    finally:
        system.close()
