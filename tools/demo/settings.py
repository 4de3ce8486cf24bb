"""Sizes and places of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

BLOCK_TOKENS = 32
MAX_MODEL_LEN = 2048
# KV blocks of the engine: 8,160 tokens and the one block it keeps for itself. Less than the demo's
# prompts hold, so that new prompts press out old ones, and room for four of the longest at once.
ENGINE_BLOCKS = 256
ENGINE_TOKENS = (ENGINE_BLOCKS - 1) * BLOCK_TOKENS
POOL_SIZE = "512mib"
# Behind the pool. All rounds together write about half of it.
SSD_CAPACITY = "1gib"
# What `orbitkv-cache-manager` leaves to others of a file system unless told otherwise.
SSD_MIN_FREE_SHARE = 0.05
OUTPUT_TOKENS = 16

PREFIX_TOKENS = (256, 512, 768, 1024, 1280, 1536)
SAMPLES_PER_LENGTH = 3

MIN_FREE_DISK_BYTES = 2_000_000_000
MIN_FREE_MEMORY_BYTES = 5_000_000_000

ENGINE_START_S = 240.0
REQUEST_S = 90.0
ATTACH_S = 30.0
DRAIN_S = 5.0
# What is written behind waits for nobody, so a slow disk may take its time.
WRITTEN_S = 60.0
RECOVER_S = 30.0
STOP_S = 20.0

# What the adapters are told. Every restored page is compared with its checksum, not a sample of them.
ADAPTER = {"verify_restore": "all"}

# What every engine needs on a machine without a GPU and without a network.
ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    # More threads than idle cores make the CPU backend ten times slower.
    "OMP_NUM_THREADS": "1",
    # The demo shows restores, also those that are slower than computing with a model as small as this one.
    "ORBITKV_REFUSE_SLOW_RESTORES": "0",
    "NO_PROXY": "127.0.0.1",
}


@dataclass(frozen=True)
class Places:
    """Where things are: programs, model and results."""

    programs: Path
    model: Path = ROOT / ".venv" / "models" / "tiny-qwen3"
    out: Path = ROOT / "out" / "demo"

    @property
    def ssd(self) -> Path:
        """The SSD cache, beside the results: `/tmp` may be memory. It goes when the demo ends."""
        return self.out / "ssd"

    def program(self, name: str) -> Path:
        """A program of the engine's environment."""
        return self.programs / name
