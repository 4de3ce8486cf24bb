"""Every dependency has its line, and its reason, in docs/dependencies.md."""

from __future__ import annotations

from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]


def test_every_workspace_dependency_is_explained() -> None:
    dependencies = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["dependencies"]
    external = {name for name, spec in dependencies.items() if isinstance(spec, str) or "path" not in spec}
    rows = [line for line in (ROOT / "docs" / "dependencies.md").read_text().splitlines() if "|" in line]
    explained = {name.strip() for row in rows for name in row.split("|")[1].split(",")}
    assert external - explained == set()
