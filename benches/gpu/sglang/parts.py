"""What is measured of SGLang, in order of worth."""

from __future__ import annotations

from benches.gpu import byte_gate, decode, ttft, wire
from benches.gpu.part import Part
from benches.gpu.run_context import Run
from benches.gpu.settings import GIB
from benches.gpu.sglang.settings import settings_of
from benches.gpu.sglang.systems import begin
from benches.gpu.systems import NATIVE, ORBITKV, System

EAGER, GRAPHS = "eager", "CUDA graphs"
# With the start of three engines side by side, whose first request compiles kernels for about a minute.
START_S, LENGTHS_S = 150, 180
# All rounds at one length, more than enough.
LENGTH_S = {1024: 20, 4096: 25, 8192: 30, 32768: 90}
# SGLang flushes HiCache's memory with its own, so prompts are pressed out by others.
PLAN = ttft.Plan(evict="press", suffix_samples=0, length_s=LENGTH_S)
# A round takes an engine 4 s where 20,000 tokens a second are computed.
MISS_PROMPTS, MISSES_S = 40, 100
GATE_S = 110


def eager(run: Run) -> None:
    """Times of engines without graphs; then misses, on the two of them that this is about."""
    with run.started(EAGER, run.systems, settings_of(run)) as systems:
        ttft.measure(run, EAGER, systems, PLAN)
        staying = [system for system in systems if system.name in (NATIVE, ORBITKV)]
        for system in systems:
            if system not in staying:
                system.close()
        if run.budget.allows(MISSES_S / 2):
            _misses(run, staying)
        else:
            run.rows.add(decode.PART, kind="missing", reason=f"{run.budget.left_s:.0f} s were left")


def misses(run: Run) -> None:
    """The same misses on engines of their own."""
    names = [name for name in run.systems if name in (NATIVE, ORBITKV)]
    with run.started("misses", names, settings_of(run)) as systems:
        _misses(run, systems)


def _misses(run: Run, systems: list[System]) -> None:
    if {system.name for system in systems} == {NATIVE, ORBITKV}:
        decode.misses(run, systems, MISS_PROMPTS // 10 if run.is_dry_run else MISS_PROMPTS)


def restored_bytes(run: Run) -> None:
    """The byte gate of the main shape."""
    manager = run.site.new_manager(*byte_gate.SEGMENTS)
    system = begin(ORBITKV, settings_of(run, is_open=True, weights_seed=1), run.site, manager=manager)
    wanted = GIB // 8 if run.is_dry_run else byte_gate.WANTED_BYTES
    prompts = (run.tokens(byte_gate.PROMPT_TOKENS), byte_gate.PROMPTS)
    try:
        system.wait_started()
        byte_gate.gate(run, byte_gate.PART, system, {}, prompts, wanted)
    finally:
        system.close()
        manager.close()


def graphs(run: Run) -> None:
    """Times of engines with CUDA graphs, as the engine uses them by itself."""
    with run.started(GRAPHS, run.systems, settings_of(run, has_graphs=True)) as systems:
        ttft.measure(run, GRAPHS, systems, PLAN)


PARTS = (
    Part("wire", wire.measure, wire.ESTIMATE_S),
    Part("eager", eager, START_S + LENGTHS_S + MISSES_S),
    Part("misses", misses, START_S + MISSES_S, within="eager"),
    Part("byte-gate", restored_bytes, GATE_S),
    Part("graphs", graphs, START_S + LENGTHS_S),
)
