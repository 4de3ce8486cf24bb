"""Fixtures of the tests on a real vLLM on a GPU: `make gpu-test`, on a host with one and no network.

Engines are processes of their own, started once for a module, eager (they start sooner) and with settings
under which greedy tokens do not depend on what else is in the batch. A test that begins after the run's
deadline is skipped, and counts as not run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from benches.gpu.settings import EngineSettings, dry
from benches.gpu.systems import Site, orbitkv_commands
from session import IS_DRY_RUN, new_prompt, site, skip_without_time
from support import Engines

__all__ = ["new_prompt", "site"]
# Every process of an engine must be able to import `zeroing`.
HERE = str(Path(__file__).resolve().parent)
os.environ["PYTHONPATH"] = os.pathsep.join((HERE, os.environ.get("PYTHONPATH", "")))
orbitkv_commands()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what there is no time for."""
    skip_without_time()


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
