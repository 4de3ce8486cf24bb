"""Commands that give a process file systems of its own, which nobody else sees."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ssd import MOUNTS, cannot


def mounted(kind: str, directory: Path, options: str) -> tuple[str, ...]:
    """In front of a command: it sees a file system of that kind at `directory`, where that is allowed here.
    An ordinary user may mount what these tests need, as root of a user namespace of his own."""
    mount = f"mount -t {kind} -o {options} {kind} {directory}"
    tried = subprocess.run([*MOUNTS, "sh", "-c", mount], capture_output=True, text=True)
    if tried.returncode != 0:
        cannot(f"a file system of its own ({mount}): {tried.stderr.strip()}")
    return (*MOUNTS, "sh", "-c", f'{mount} && exec "$@"', "sh")


def seen_by(pid: int, path: Path) -> Path:
    """That path as a process sees it."""
    return Path(f"/proc/{pid}/root{path}")
