"""Fixtures of the tests on a real engine on a GPU: `make gpu-test`, on a host with one and no network.

Engines are processes of their own, started once for a module, eager (they start sooner) and with settings
under which greedy tokens do not depend on what else is in the batch. A test that begins after the run's
deadline is skipped, and counts as not run."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from benches.gpu.prompts import prompt
from benches.gpu.settings import GIB, EngineSettings, dry
from benches.gpu.systems import Site, orbitkv_commands
from benches.gpu.tests import DEADLINE_VARIABLE, DRY_RUN_VARIABLE, OUT_VARIABLE
from support import Engines

# A test does not begin with less.
LEAST_LEFT_S = 20.0
# Every process of an engine must be able to import `zeroing`.
HERE = str(Path(__file__).resolve().parent)
os.environ["PYTHONPATH"] = os.pathsep.join((HERE, os.environ.get("PYTHONPATH", "")))
IS_DRY_RUN = bool(os.environ.get(DRY_RUN_VARIABLE))
orbitkv_commands()


def pytest_runtest_setup(item: pytest.Item) -> None:
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


@pytest.fixture(scope="session")
def settings() -> EngineSettings:
    """Of all engines of these tests, unless a test changes some."""
    made = EngineSettings(is_eager=True, is_deterministic=True, weights_seed=7)
    return dry(made) if IS_DRY_RUN else made


@pytest.fixture(scope="session")
def long_tokens() -> int:
    """A prompt whose copy takes long enough to be met in the middle."""
    return 2048 if IS_DRY_RUN else 32_768


@pytest.fixture(scope="module")
def engines(site: Site, settings: EngineSettings) -> Iterator[Engines]:
    """Starts engines and managers; they end with the module."""
    made = Engines(site, settings)
    yield made
    made.close()


@pytest.fixture
def new_prompt(request: pytest.FixtureRequest) -> Callable[..., list[int]]:
    """Prompts that belong to this test alone: `new_prompt(tokens, index=0)`."""
    seed = zlib.crc32(request.node.nodeid.encode()) << 8
    return lambda tokens, index=0: prompt(seed + index, tokens)
