"""Identity of a model's weights without reading them all.

Two fine-tunes of one base share configuration, names and sizes, so the bytes themselves must be looked at:
of each file its size, its safetensors header and blocks sampled evenly over its length.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

SAMPLES = 64
SAMPLE_BYTES = 4096
# The header's length comes from the file: a corrupt one must not make us read gigabytes.
MAX_HEADER_BYTES = 64 << 20
MAX_FILES = 4096
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
# Where a configuration was read from, and by what, changes no weight.
CONFIG_NOISE = ("_name_or_path", "transformers_version", "_commit_hash")


class WeightsError(Exception):
    """The weights cannot be identified; the message says why."""


def model_identity(
    config: dict[str, Any], path: str, revision: str | None, *, dummy_seed: int | None = None
) -> dict[str, Any]:
    """Configuration digest and, for each weight file, its digest. Reads at most 256 KiB a file plus headers.
    With `dummy_seed` the weights come from a generator, of which the seed is all there is to know."""
    identity: dict[str, Any] = {"config": config_digest(config)}
    if dummy_seed is not None:
        return {**identity, "dummy_seed": dummy_seed}
    local = local_path(path, revision)
    files = weight_files(local)
    if not files:
        raise WeightsError(f"no weight file ({', '.join(WEIGHT_SUFFIXES)}) found in {local}")
    return {**identity, "files": {name: file_digest(file) for name, file in files.items()}}


def config_digest(config: dict[str, Any]) -> str:
    """Digest of a model configuration as read and overridden by the engine."""
    kept = {key: value for key, value in config.items() if key not in CONFIG_NOISE}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def local_path(model: str, revision: str | None) -> Path:
    """Directory or file that holds the weights: the path itself, or the hub's snapshot on this machine."""
    path = Path(model)
    if path.exists():
        return path
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception as error:  # many kinds, all of which mean "not here"
        raise WeightsError(
            f"weights of {model!r} are not on this machine ({type(error).__name__})"
        ) from error


def weight_files(path: Path) -> dict[str, Path]:
    """Weight files by their name relative to `path`, in a fixed order."""
    if path.is_file():
        return {path.name: path}
    found = sorted(file for file in path.rglob("*") if file.suffix in WEIGHT_SUFFIXES and file.is_file())
    if len(found) > MAX_FILES:
        raise WeightsError(f"{path} holds {len(found)} weight files; at most {MAX_FILES} can be identified")
    return {str(file.relative_to(path)): file for file in found}


def file_digest(path: Path) -> str:
    """Digest of a file's size, safetensors header and samples."""
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            length = int.from_bytes(file.read(8), "little")
            if length > min(size, MAX_HEADER_BYTES):
                raise WeightsError(f"{path} has a safetensors header of {length} bytes in a file of {size}")
            digest.update(file.read(length))
        for index in range(SAMPLES):
            file.seek(max(size - SAMPLE_BYTES, 0) * index // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
