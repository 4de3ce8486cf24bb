"""Bytes of KV memory, saved, overwritten, restored and compared on the device they lie on.

What is compared is what the engine computed: bytes without a pattern, different in every page, so that a
page that comes back to the wrong place, shifted, or not at all is a difference. Before each restore all
memory is overwritten, and the same comparison must then find a difference in every page: the control.

`measure` restores 100 GiB in the shape and type that is served most; `variants` goes through the types of
KV memory and the layouts with a model of fewer layers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from benches.gpu.child import ChildError
from benches.gpu.growth import grow
from benches.gpu.model import SHALLOW
from benches.gpu.process import ProcessError, wait_until
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.run_context import Run
from benches.gpu.settings import GIB, EngineSettings
from benches.gpu.systems import ACTIVE_WITHIN_S, ORBITKV, STARTS_WITHIN_S, System, begin

PART, VARIANTS_PART = "byte-gate", "byte-gate-variants"
ESTIMATE_S, VARIANTS_ESTIMATE_S = 80, 110
WANTED_BYTES = 104 * GIB
PROMPT_TOKENS, PROMPTS = 32_768, 3
VARIANT_TOKENS, VARIANT_ROUNDS, VARIANT_S = 8192, 6, 5
# So large that the pool has room for a prompt soon: bytes are compared here, no times.
SEGMENTS = ("--segment-size", str(GIB // 8))
TARGET = "benches.gpu.stepped:Stepped"
# Types of KV memory, each with the layouts that its kernels take.
VARIANTS: tuple[dict[str, Any], ...] = (
    {"kv_cache_dtype": "fp8"},
    {"layout": "LBHNC"},
    {"kv_cache_dtype": "fp8", "layout": "LBHNC"},
    {"dtype": "float16"},
    {"layout": "BLNHC"},
    {"layout": "BLHNC"},
    {"kv_cache_dtype": "fp8", "layout": "BLNHC"},
    {"dtype": "float32", "attention": "TRITON_ATTN"},
)


def measure(run: Run) -> None:
    """Rows of the main shape, until 100 GiB have been restored."""
    settings = run.settings(is_eager=True, is_multiprocess=False, weights_seed=1)
    wanted = GIB // 8 if run.is_dry_run else WANTED_BYTES
    manager = run.site.new_manager(*SEGMENTS)
    system = begin(ORBITKV, settings, run.site, manager=manager, target=TARGET)
    try:
        system.wait_started()
        gate(run, PART, system, {}, (run.tokens(PROMPT_TOKENS), PROMPTS), wanted)
    finally:
        system.close()
        manager.close()


def variants(run: Run) -> None:
    """Rows of each variant. Engines of so few layers are small: all start at once, on one manager."""
    manager = run.site.new_manager(*SEGMENTS)
    begun: list[tuple[dict[str, Any], System]] = []
    tokens = run.tokens(VARIANT_TOKENS)
    wanted = VARIANT_ROUNDS * tokens * SHALLOW.kv_bytes_per_token()
    try:
        for variant in VARIANTS[:2] if run.is_dry_run else VARIANTS:
            system = begin(ORBITKV, _variant_settings(run, variant), run.site, manager=manager, target=TARGET)
            begun.append((variant, system))
        built = [(variant, system) for variant, system in begun if _is_built(run, variant, system)]
        with suppress(ProcessError):
            # One that never becomes active restores nothing, and its rows say so.
            wait_until(lambda: manager.active_instances() >= len(built), "all are active", ACTIVE_WITHIN_S)
        for variant, system in built:
            if run.budget.allows(VARIANT_S):
                gate(run, VARIANTS_PART, system, variant, (tokens, 2), wanted)
            else:
                run.rows.add(VARIANTS_PART, kind="missing", variant=variant, reason="no time left")
    finally:
        for _, system in begun:
            system.engine.kill()
        manager.close()


def _is_built(run: Run, variant: dict[str, Any], system: System) -> bool:
    """Waits for an engine. Not every build has a kernel for each variant: said, and not taken for a pass."""
    try:
        system.facts = system.engine.wait_built(STARTS_WITHIN_S)
    except ChildError as reason:
        run.rows.add(VARIANTS_PART, kind="missing", variant=variant, reason=str(reason)[-1500:])
        run.say(f"byte gate {variant}: {str(reason).strip().splitlines()[-1]}")
        return False
    return True


def _variant_settings(run: Run, variant: dict[str, Any]) -> EngineSettings:
    small = {"kv_cache_bytes": 4 * GIB, "memory_share": 0.05, "shape": SHALLOW}
    settings = run.settings(is_eager=True, is_multiprocess=False, weights_seed=1, **small, **variant)
    # An engine without a GPU has one type and one layout.
    return settings.with_(kv_cache_dtype="auto", layout=None) if run.is_dry_run else settings


def gate(
    run: Run, part: str, system: System, variant: dict[str, Any], prompts: tuple[int, int], wanted_bytes: int
) -> None:
    """Learns `prompts`, tokens and count, and restores them in turn until so many bytes have come back."""
    tokens, count = prompts
    run.rows.add("start", for_part=part, system=ORBITKV, variant=variant, **system.facts)
    grow(system, (count + 1) * tokens * system.facts["block_bytes"] // BLOCK_TOKENS)
    learnt = []
    for _ in range(count):
        learnt.append(system.engine.call("learn", run.seeds.new(tokens), within_s=300))
        system.wait_saved(patiently=True)
    restored = number = 0
    while restored < wanted_bytes and run.budget.allows(2):
        prompt = learnt[number % count]
        result = system.engine.call("gate", prompt["number"])
        number += 1
        whole = result["cached"] >= restorable_tokens(tokens)
        values = {"distinct": prompt["distinct"], "whole": whole, "variant": variant, **result}
        run.rows.add(part, system=ORBITKV, kind="gate", tokens=tokens, round=number, **values)
        if result["bytes"] == 0 and number >= count:
            break  # nothing comes back: there is nothing to wait for
        restored += result["bytes"]
    run.say(f"byte gate {variant or 'main'}: {restored / GIB:.1f} GiB, {run.budget.left_s:.0f} s left")
