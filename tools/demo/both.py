"""A vLLM and an SGLang engine at once on one cache manager, under one query budget.

Both answer the same prompts cold, both are pressed out, and all pages are left on the SSD alone. Then both
ask for them back at the same time, several requests each, which together want more than the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from demo import compare, counters, drain, workload
from demo.both_report import Budget, Outcome, Share
from demo.client import Client
from demo.engine import Engine
from demo.processes import HOST, Processes
from demo.progress import say
from demo.rounds import CONCURRENCY, Round, Source, Stage
from demo.settings import ADAPTER, ROOT, WRITTEN_S, Places
from demo.sglang import Sglang
from demo.start import wait_started
from demo.vllm import Vllm

# More than the longest prompt; eight prompts of all lengths are asked for at once.
QUERY_BUDGET = "8mib"
# Two prompts of each length, to each engine.
REQUESTS = 12
# Who waits for budget must not run out of time on a slow disk: what is shown is who gets what, not when.
PATIENT = {**ADAPTER, "lookup_deadline_ms": 30_000}

T = TypeVar("T")


@dataclass(frozen=True)
class Side:
    """One engine that serves."""

    engine: str
    self_test: str
    stage: Stage


def engines() -> list[tuple[Engine, Places]]:
    """The two engines, each with the programs of its own environment."""
    programs = [ROOT / ".venv" / f"{name}-cpu" / "bin" for name in ("vllm", "sglang")]
    return list(zip((Vllm(PATIENT), Sglang(PATIENT)), map(Places, programs), strict=True))


def play(started: list[Processes]) -> Outcome:
    """All of it; the engines are stopped in the end, and the manager is not."""
    sides = start(started)
    status = sides[0].stage.status
    requests = workload.serial_requests()[:REQUESTS]
    say(f"{len(requests)} prompts to each engine, cold")
    cold = [play_cold(side, requests) for side in sides]
    for side in sides:
        side.stage.press(f"of {side.engine}")
    sides[0].stage.drop_memory()
    waits_before = status()["counters"]["budget_waits"]
    restored = play_both(sides, requests)
    budget = Budget.read(status(), waits_before)
    verdicts = [
        compare.judge(side.stage, before, after, requests, say)
        for side, before, after in zip(sides, cold, restored, strict=True)
    ]
    say("stopping the engines")
    for each in started:
        each.stop_engine()
    stopped = drain.check("engines stopped", status, WRITTEN_S, writes=True)
    shares = [
        Share(side.engine, side.self_test, *rest)
        for side, *rest in zip(sides, cold, restored, verdicts, strict=True)
    ]
    return Outcome(shares, budget, [*(each.drain for each in cold), restored[0].drain, stopped])


def start(started: list[Processes]) -> list[Side]:
    """Starts the manager and both engines, and warms them up."""
    say(f"orbitkv-cache-manager --query-budget {QUERY_BUDGET} ...")
    started[0].launch_manager("--query-budget", QUERY_BUDGET)
    say("orbitkv run, twice ...")
    for each in started:
        each.start()
    sides = []
    for each in started:
        engine, self_test = wait_started(each)
        sides.append(Side(engine, self_test, Stage(each, Client(each.kind, HOST, each.port), say)))
    say("warming the engines up")
    at_once(sides, lambda side: side.stage.phase(workload.warm_up_requests(), 1))
    return sides


def at_once(sides: Sequence[Side], call: Callable[[Side], T]) -> list[T]:
    """The same for both engines at the same time; results in their order."""
    with ThreadPoolExecutor(len(sides)) as threads:
        return list(threads.map(call, sides))


def play_cold(side: Side, requests: list[workload.Request]) -> Round:
    """The requests to one engine, each when the pages of the one before are on the SSD: the manager writes so
    many behind at once, and what is saved beyond that stays in memory alone."""
    phases, status = [], side.stage.status
    for request in requests:
        phases.append(side.stage.phase([request], 1))
        drained = drain.check(f"cold, {side.engine}", status, WRITTEN_S, writes=True)
    say(str(drained))
    return Round("cold", Source.NOTHING, phases, drained, counters.page_bytes(status()))


def play_both(sides: Sequence[Side], requests: list[workload.Request]) -> list[Round]:
    """The requests to both engines at the same time. Of the counters in there the manager's are those of
    both."""
    say(f"both ask for them back, {CONCURRENCY} at a time each")
    phases = at_once(sides, lambda side: side.stage.phase(requests, CONCURRENCY))
    status = sides[0].stage.status
    drained = drain.check("both at once", status)
    say(str(drained))
    page_bytes = counters.page_bytes(status())
    return [Round("both at once", Source.SSD, [phase], drained, page_bytes) for phase in phases]
