"""The engines that a run can be about, and what differs between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benches.gpu import byte_gate, decode, engines, registration, sglang, timeline, wire
from benches.gpu.child import ROOT
from benches.gpu.part import Part
from benches.gpu.settings import GIB
from benches.gpu.sglang import parts as sglang_parts
from benches.gpu.sglang import systems as sglang_systems
from benches.gpu.sglang.targets import SHOWN as SGLANG_SHOWN
from benches.gpu.summary import VLLM_SHOWN, Shown
from benches.gpu.systems import SYSTEMS, System, begin


@dataclass(frozen=True)
class Kind:
    """One engine: parts in order of worth, systems, and where its tests are."""

    name: str
    parts: tuple[Part, ...]
    systems: tuple[str, ...]
    begin: Callable[..., System]
    shown: Shown
    tests: Path
    # Host memory that the caches of all systems may take at once.
    memory_bytes: int
    # For the manifest.
    model: str


VLLM = Kind(
    name="vllm",
    parts=(
        Part("wire", wire.measure, wire.ESTIMATE_S),
        Part("compiled", engines.compiled, engines.COMPILED_S),
        Part("decode", decode.alone, decode.START_S + decode.ESTIMATE_S, within="compiled"),
        Part("byte-gate", byte_gate.measure, byte_gate.ESTIMATE_S),
        Part("eager", engines.eager, engines.EAGER_S),
        Part("registration", registration.measure, registration.ESTIMATE_S),
        Part("byte-gate-variants", byte_gate.variants, byte_gate.VARIANTS_ESTIMATE_S),
        Part("timeline", timeline.measure, timeline.ESTIMATE_S),
    ),
    systems=SYSTEMS,
    begin=begin,
    shown=VLLM_SHOWN,
    tests=ROOT / "tests" / "gpu",
    memory_bytes=84 * GIB,
    model="Qwen3-8B's shape, bfloat16, blocks of 64 tokens",
)
SGLANG = Kind(
    name="sglang",
    parts=sglang_parts.PARTS,
    systems=sglang_systems.SYSTEMS,
    begin=sglang_systems.begin,
    shown=SGLANG_SHOWN,
    tests=ROOT / "tests" / "gpu_sglang",
    memory_bytes=60 * GIB,
    model=sglang.MODEL,
)
KINDS = {kind.name: kind for kind in (VLLM, SGLANG)}
