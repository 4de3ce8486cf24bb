"""What the tests of every engine on a GPU have in common: their time, their place, their prompts."""

from __future__ import annotations

import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benches.gpu.prompts import prompt
from benches.gpu.settings import GIB
from benches.gpu.systems import Site
from benches.gpu.tests import DEADLINE_VARIABLE, DRY_RUN_VARIABLE, OUT_VARIABLE

# A test does not begin with less.
LEAST_LEFT_S = 20.0
IS_DRY_RUN = bool(os.environ.get(DRY_RUN_VARIABLE))


def skip_without_time() -> None:
    """Skips what there is no time for."""
    left_s = float(os.environ.get(DEADLINE_VARIABLE, "inf")) - time.time()
    if left_s < LEAST_LEFT_S:
        pytest.skip(f"{max(left_s, 0):.0f} s were left of the budget")


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Where everything works; the logs stay where the run's output goes."""
    out = os.environ.get(OUT_VARIABLE)
    with tempfile.TemporaryDirectory(prefix="okv-test-", ignore_cleanup_errors=True) as work:
        made = Site(Path(work), GIB if IS_DRY_RUN else 16 * GIB, {"verify_restore": "all"})
        yield made
        if out:
            logs = sorted((made.work / "logs").glob("*.log"))
            text = "".join(
                f"===== {log.name}\n{log.read_text(errors='replace')[-200_000:]}\n" for log in logs
            )
            (Path(out) / "test-logs.txt").write_text(text)


@pytest.fixture
def new_prompt(request: Any) -> Callable[..., list[int]]:
    """Prompts that belong to this test alone: `new_prompt(tokens, index=0)`."""
    seed = zlib.crc32(request.node.nodeid.encode()) << 8
    return lambda tokens, index=0: prompt(seed + index, tokens)
