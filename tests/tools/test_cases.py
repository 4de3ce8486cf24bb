"""docs/cases.md names every case that has a test, and nothing else."""

from __future__ import annotations

import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| A-(\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def listed() -> dict[str, list[Path]]:
    """Files that the table names, by the number of the case."""
    rows = ROW.findall((ROOT / "docs/cases.md").read_text())
    return {case: [ROOT / name for name in re.findall(r"`([^`]+)`", tests)] for case, tests in rows}


@functools.cache
def with_tests() -> dict[str, set[Path]]:
    """Files with a test of a case in them, by its number."""
    found: dict[str, set[Path]] = {}
    for pattern in ("tests/**/*.py", "crates/**/*.rs"):
        for path in ROOT.glob(pattern):
            for case in re.findall(r"(?:def test|fn)_?\s?case_a(\d+)", path.read_text()):
                found.setdefault(case, set()).add(path)
    return found


def test_every_case_with_a_test_is_listed_and_nothing_else() -> None:
    assert len(listed()) > 30
    assert sorted(listed()) == sorted(with_tests())


def test_the_files_of_a_case_are_those_that_test_it() -> None:
    for case, files in listed().items():
        assert with_tests()[case] <= set(files), f"A-{case}"
        assert all(path.exists() for path in files), f"A-{case}"
