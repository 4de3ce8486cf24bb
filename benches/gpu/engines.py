"""Parts that need all systems side by side: their engines start once, and serve several measurements."""

from __future__ import annotations

from benches.gpu import decode, registration, shared, ttft
from benches.gpu.run_context import Run
from benches.gpu.systems import NATIVE, ORBITKV

COMPILED_S = registration.BESIDE_S + ttft.ESTIMATES_S["compiled"] + decode.ESTIMATE_S
EAGER_S = ttft.ESTIMATES_S["eager"]


def compiled(run: Run) -> None:
    """Engines as users run them: compiled, with CUDA graphs, the core in a process of its own."""
    with run.started("compiled", run.systems, run.settings(is_open=True)) as systems:
        ours = [system for system in systems if system.name == ORBITKV]
        for system in ours:
            # First: it leaves a pool that has grown.
            registration.beside(run, system)
        ttft.measure(run, "compiled", systems)
        for system in ours:
            shared.measure(run, "compiled", system)
        staying = [system for system in systems if system.name in (ORBITKV, NATIVE)]
        for system in systems:
            if system not in staying:
                system.close()
        decode.measure(run, staying)


def eager(run: Run) -> None:
    """Engines without compilation and graphs."""
    with run.started("eager", run.systems, run.settings(is_eager=True)) as systems:
        ttft.measure(run, "eager", systems)
