"""Processes, as the kernel lists them."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that only waits to be collected does not."""
    return _state_and_parent(pid)[0] not in ("", "Z", "X")


def descendants(pid: int) -> list[int]:
    """Children of a process and theirs, parents first."""
    parents = {int(entry.name): _state_and_parent(int(entry.name))[1] for entry in _processes()}
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def parent_of(pid: int) -> int:
    """Its parent; 0 if it is gone."""
    return _state_and_parent(pid)[1]


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", 0
    # The name in parentheses may hold anything.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)
