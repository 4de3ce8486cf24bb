"""Rows of a run: one JSON object a line, on the disk as soon as it is measured."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Rows:
    """Appends to `rows.jsonl` in `directory`, which is made. A run that is cut short keeps what it has."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "rows.jsonl"
        self._path.write_text("")
        self._begun = time.monotonic()
        self.all: list[dict[str, Any]] = []

    def add(self, part: str, **values: Any) -> dict[str, Any]:
        """Adds a row of `part`; `at_s` is the time since the run began."""
        row = {"part": part, "at_s": round(time.monotonic() - self._begun, 3), **values}
        self.all.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row

    def of(self, part: str, **wanted: Any) -> list[dict[str, Any]]:
        """Rows of a part that have all of these values."""
        return [
            row
            for row in self.all
            if row["part"] == part and all(row.get(name) == value for name, value in wanted.items())
        ]
