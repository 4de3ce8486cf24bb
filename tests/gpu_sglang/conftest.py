"""Fixtures of the tests on a real SGLang on a GPU: `make gpu-test ENGINE=sglang`, on a host with one and no
network.

Engines run with deterministic inference, so tokens are the same whether a prompt was computed, found on the
device or restored, alone or beside others. What they share with the tests of vLLM lies there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

from benches.gpu.sglang.settings import SglangSettings, dry
from benches.gpu.sglang.systems import begin
from benches.gpu.systems import Site, orbitkv_commands
from session import IS_DRY_RUN, new_prompt, site, skip_without_time
from support import Engines

__all__ = ["new_prompt", "site"]
PATIENT = {"lookup_deadline_ms": 30_000}
orbitkv_commands()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what there is no time for."""
    skip_without_time()


@pytest.fixture(scope="session")
def settings() -> SglangSettings:
    """Of all engines of these tests, unless a test changes some. Prompts are shorter than half of the
    engine's memory."""
    made = SglangSettings(is_deterministic=True, weights_seed=7, kv_tokens=24_576)
    return dry(made).with_(kv_tokens=8192) if IS_DRY_RUN else made


@pytest.fixture(scope="module")
def engines(site: Site, settings: SglangSettings) -> Iterator[Engines]:
    """Starts engines and managers; they end with the module. Requests wait for an SSD however slow it is."""
    made = Engines(replace(site, connector={**site.connector, **PATIENT}), settings, begin)
    yield made
    made.close()
