"""What it costs an engine to register its pool with the device in the background, and to start with the
connector.

An engine is given the whole pool when it connects, long before a step can be timed. So the pool grows
while requests decode: each new segment is registered beside their steps, which are timed alone as well, in
turn. Starts are timed with and without the connector in turn, eager, one at a time."""

from __future__ import annotations

import time
from typing import Any

from benches.gpu.child import ChildError
from benches.gpu.grower import Grower, is_registered, pages_of, registered
from benches.gpu.process import Manager, ProcessError, wait_until
from benches.gpu.run_context import Run
from benches.gpu.settings import GIB, EngineSettings
from benches.gpu.systems import NATIVE, ORBITKV, System, begin

PART = "registration"
# Of an engine that runs already; of the starts.
BESIDE_S = 30
ESTIMATE_S = 150
# 16 GiB in all.
GROWTH_BYTES, ROUNDS = 4 * GIB, 4
REQUESTS, PROMPT_TOKENS, STEPS = 8, 512, 250
# The requests hit from the second time on, so that little is saved beside them.
SEED = 9_000_000
# All requests decode by then, and are timed.
LEAD_S = 0.5
REGISTERED_WITHIN_S = 20.0
# The pool is registered in the background; a start that waited for it would show in the starts below.
STARTS = 3
START_S = 45


def measure(run: Run) -> None:
    """Rows of the steps, unless that was done on the engines of another part, and of the starts."""
    if not run.rows.of(PART):
        with run.started(PART, [ORBITKV], run.settings(is_open=True)) as systems:
            for system in systems:
                beside(run, system)
    settings = run.settings(is_eager=True)
    manager = run.site.new_manager()
    try:
        for number in range(STARTS):
            for name in (NATIVE, ORBITKV) if number % 2 == 0 else (ORBITKV, NATIVE):
                if run.budget.allows(START_S):
                    _started(run, settings, manager, name, number)
    finally:
        manager.close()


def beside(run: Run, system: System) -> None:
    """Rows of decoding alone and beside a pool that grows, in turn, of an OrbitKV engine that is open to
    functions of ours."""
    manager = system.manager
    assert manager is not None, "it is OrbitKV's pool that grows"
    try:
        with Grower(manager, system.engine.call("rpc", pages_of)) as grower:
            system.engine.call("decode", *_decoding(run), within_s=300)
            for number in range(ROUNDS):
                for growing in (False, True) if number % 2 == 0 else (True, False):
                    _wait_at_rest(system, manager)
                    _round(run, system, grower if growing else None, number)
    except (ChildError, ProcessError) as error:
        # What follows on this engine is measured all the same.
        run.missing(PART, system.name, f"steps beside registration: {error}")
    run.say(f"registration beside steps: done, {run.budget.left_s:.0f} s left")


def _decoding(run: Run) -> tuple[int, int, int, int]:
    return REQUESTS, run.tokens(PROMPT_TOKENS), STEPS // 10 if run.is_dry_run else STEPS, SEED


def _wait_at_rest(system: System, manager: Manager) -> None:
    """Waits until nothing is saved, and the device has all of the pool."""
    system.wait_saved()

    def has_all() -> bool:
        pool_bytes = manager.status()["pool"]["bytes"]
        return is_registered(system.engine.call("rpc", registered), pool_bytes)

    wait_until(has_all, "the pool is registered with the device", REGISTERED_WITHIN_S, every_s=0.1)


def _round(run: Run, system: System, grower: Grower | None, number: int) -> None:
    assert system.manager is not None
    growth = GIB // 16 if run.is_dry_run else GROWTH_BYTES
    until = system.manager.status()["pool"]["bytes"] + (growth if grower else 0)
    system.engine.begin("decode_until_registered", *_decoding(run), until)
    grown = 0
    try:
        if grower is not None:
            time.sleep(LEAD_S)
            grown = grower.grow(growth)
    finally:
        # What was begun is awaited in any case: the next call would get its answer.
        result = system.engine.end()
    values = {
        "background": grower is not None,
        "round": number,
        "intervals_ms": [round(value, 3) for value in result["intervals_ms"]],
        "seconds": round(result["seconds"], 3),
        "registered_bytes": result["registered_bytes"],
        "grown_bytes": grown,
        "pool_bytes": system.manager.status()["pool"]["bytes"],
    }
    run.rows.add(PART, system=system.name, kind="steps", **values)


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
