"""What copies cost requests that decode, and what saving costs an engine that only misses.

*Copies*: eight requests decode, and their tokens are timed alone and beside copies in both directions that
belong to no request, in turn. *Requests*: the same beside restores of long prompts that follow each other
without a pause; the engine's own memory is too small for these prompts, so each is restored whole. *Steps*:
the same beside short prompts, whose restores share a step with the decoding requests. Each request beside
also takes a step of its own, wherever its prefix comes from; so these two are repeated with prompts that the
engine has in its own memory, as many a second (*hits*). *Misses*: two engines answer the same number of new
prompts in turn, one without a connector."""

from __future__ import annotations

from typing import Any

from benches.gpu.child import ChildError
from benches.gpu.growth import grow
from benches.gpu.prompts import BLOCK_TOKENS
from benches.gpu.run_context import Run, rotated
from benches.gpu.settings import GIB
from benches.gpu.systems import NATIVE, ORBITKV, System

PART = "decode"
# Of engines that run already, and of their start.
ESTIMATE_S = 180
START_S = 60
STEPS_S = 30
STORE_TRIES = 3
REQUESTS, PROMPT_TOKENS, STEPS, ROUNDS = 8, 512, 400, 3
COPIES_ROUNDS, COPIES_S = 6, 60
LONG_TOKENS, LONG_PROMPTS = 16 * 1024, 4
SHORT_TOKENS, SHORT_PROMPTS, SHORT_GAP_MS = 1024, 48, 60.0
# A round takes an engine 4 s where 32,000 tokens a second are computed.
MISS_PROMPTS, MISS_TOKENS, MISS_OUTPUT, MISS_ROUNDS, MISS_ROUND_S = 64, 2048, 32, 8, 12
POOL_BYTES = 20 * GIB


def alone(run: Run) -> None:
    """This part on engines of its own, compiled as users run them."""
    names = [name for name in run.systems if name in (ORBITKV, NATIVE)]
    with run.started(PART, names, run.settings(is_open=True)) as systems:
        measure(run, systems)


def measure(run: Run, systems: list[System]) -> None:
    """All of it, of the running systems `orbitkv` and `native`."""
    for system in systems:
        system.engine.call("ask_all", _prompts(run, 8, PROMPT_TOKENS), 8, within_s=300)
    for system in (system for system in systems if system.name == ORBITKV):
        grow(system, GIB // 4 if run.is_dry_run else POOL_BYTES)
        if _has_time(run, "copies", COPIES_S):
            # Otherwise memory of the pool moves between the engine and the copies, and each segment that does
            # is registered with the device: another part measures that.
            system.engine.call("reset", True)
            _beside_copies(run, system)
    if {system.name for system in systems} == {ORBITKV, NATIVE}:
        misses(run, systems)
    for system in (system for system in systems if system.name == ORBITKV):
        if _has_time(run, "requests", STEPS_S):
            _beside(run, system, "requests", LONG_TOKENS, LONG_PROMPTS, gap_ms=0.0)
        if _has_time(run, "steps", STEPS_S):
            _beside(run, system, "steps", SHORT_TOKENS, SHORT_PROMPTS, gap_ms=SHORT_GAP_MS)


def _has_time(run: Run, what: str, seconds: float) -> bool:
    """Whether there is time for it; else a row says that it is missing."""
    if run.budget.allows(seconds):
        return True
    run.rows.add(PART, kind="missing", of=what, reason=f"{run.budget.left_s:.0f} s were left")
    return False


def _steps(run: Run) -> int:
    return STEPS // 8 if run.is_dry_run else STEPS


def _beside_copies(run: Run, system: System) -> None:
    """Rows of decoding alone and beside copies that belong to no request, in turn."""
    assert system.manager is not None, "the copies are between its pool and the device"
    try:
        opened = system.engine.call("open_copies", str(system.manager.socket), within_s=300)
        run.say(f"decode copies: {opened['restored_bytes'] / opened['seconds'] / 1e9:.1f} GB/s restored")
        for number in range(COPIES_ROUNDS):
            for beside in (False, True) if number % 2 == 0 else (True, False):
                what = (REQUESTS, run.tokens(PROMPT_TOKENS), _steps(run), 6_000_000 + 100 * number)
                result = system.engine.call("decode_beside_copies" if beside else "decode", *what)
                system.wait_saved()
                _add_beside_copies(run, system, beside, number, result)
    except ChildError as error:
        # The other kinds are measured all the same.
        run.missing(PART, system.name, f"copies beside no request: {error}")
    finally:
        system.engine.call("close_copies")
    run.say(f"decode copies: done, {run.budget.left_s:.0f} s left")


def _add_beside_copies(run: Run, system: System, beside: bool, number: int, result: dict[str, Any]) -> None:
    copies = result.get("copies", {"seconds": 1.0, "restored_bytes": 0, "saved_bytes": 0})
    values = {
        "background": beside,
        "round": number,
        "intervals_ms": [round(value, 3) for value in result["intervals_ms"]],
        "seconds": round(result["seconds"], 3),
        **{
            f"{way}_gb_s": round(copies[f"{way}_bytes"] / copies["seconds"] / 1e9, 3)
            for way in ("restored", "saved")
        },
    }
    run.rows.add(PART, system=system.name, kind="copies", **values)


def _prompts(run: Run, count: int, tokens: int) -> list[list[int]]:
    # One token more than whole blocks: all of it can be restored, and one token is computed.
    return [run.seeds.new(run.tokens(tokens) + 1) for _ in range(count)]


def _beside(run: Run, system: System, kind: str, tokens: int, count: int, gap_ms: float) -> None:
    """Rows of decoding alone and beside restores, in turn."""
    prompts = _prompts(run, count, tokens)
    _store(system, prompts)
    for number in range(ROUNDS):
        for beside in (False, True) if number % 2 == 0 else (True, False):
            background = {"prompts": prompts, "depth": 1, "gap_ms": gap_ms} if beside else None
            before = _restored_pages(system)
            what = (REQUESTS, run.tokens(PROMPT_TOKENS), _steps(run), 7_000_000 + 100 * number)
            result = system.engine.call("decode", *what, background)
            result["restored_pages"] = _restored_pages(system) - before
            system.wait_saved()
            _add_decoding(run, system, kind, beside, number, result)
            if beside and result["background_finished"]:
                gap_ms = 1000 * result["seconds"] / result["background_finished"]
                _beside_hits(run, system, kind, prompts[:1], gap_ms, number)
    run.say(f"decode {kind}: done, {run.budget.left_s:.0f} s left")


def _store(system: System, prompts: list[list[int]]) -> None:
    """Has the prompts computed and saved, until all of them come back, or it has been tried often enough."""
    missing = prompts
    for _ in range(STORE_TRIES):
        cached = [system.engine.call("ask", prompt, within_s=120)["cached"] for prompt in missing]
        missing = [prompt for prompt, found in zip(missing, cached, strict=True) if found < len(prompt) - 1]
        if not missing:
            return
        system.wait_saved(patiently=True)
        system.engine.call("reset")


def _beside_hits(
    run: Run, system: System, kind: str, prompts: list[list[int]], gap_ms: float, number: int
) -> None:
    """A row of decoding beside requests that find their prefix in the engine's own memory."""
    system.engine.call("ask", prompts[0], within_s=120)
    before = _restored_pages(system)
    background = {"prompts": prompts, "depth": 1, "gap_ms": gap_ms}
    seed = 8_000_000 + 100 * number
    result = system.engine.call("decode", REQUESTS, run.tokens(PROMPT_TOKENS), _steps(run), seed, background)
    result["restored_pages"] = _restored_pages(system) - before
    _add_decoding(run, system, f"{kind}-hits", True, number, result)


def _restored_pages(system: System) -> int:
    return 0 if system.manager is None else system.manager.status()["counters"]["restored_pages"]


def _add_decoding(
    run: Run, system: System, kind: str, beside: bool, number: int, result: dict[str, Any]
) -> None:
    page_bytes = BLOCK_TOKENS * run.settings().shape.kv_bytes_per_token()
    values = {
        "background": beside,
        "round": number,
        "intervals_ms": [round(value, 3) for value in result["intervals_ms"]],
        "seconds": round(result["seconds"], 3),
        "background_finished": result["background_finished"],
        "restored_pages": result["restored_pages"],
        "background_gb_s": round(result["restored_pages"] * page_bytes / result["seconds"] / 1e9, 3),
    }
    run.rows.add(PART, system=system.name, kind=kind, **values)


def misses(run: Run, systems: list[System], count: int = MISS_PROMPTS) -> None:
    """Rows of tokens a second with nothing but new prompts, `count` at a time; a round has one of each
    engine."""
    for number in range(MISS_ROUNDS + 1):
        if not run.budget.allows(MISS_ROUND_S):
            break
        for system in rotated(systems, number):
            prompts = _prompts(run, count, MISS_TOKENS)
            result = system.engine.call("ask_all", prompts, MISS_OUTPUT, within_s=300)
            system.wait_saved()
            tokens = sum(len(prompt) + MISS_OUTPUT for prompt in prompts)
            cached = sum(answer["cached"] for answer in result["answers"])
            if number > 0:  # the first warms up
                rate = round(tokens / result["seconds"], 1)
                values = {"tokens_per_s": rate, "seconds": round(result["seconds"], 3), "cached": cached}
                run.rows.add(PART, system=system.name, kind="misses", round=number, **values)
    run.say(f"decode misses: done, {run.budget.left_s:.0f} s left")
