"""Fixtures of the adapter tests: a fake native module and a miniature engine. They need vLLM, no manager."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
if importlib.util.find_spec("orbitkv") is None:
    sys.path.insert(0, str(HERE.parents[1] / "python"))
if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]


def _load(name: str) -> ModuleType:
    """A helper module beside this file; test directories are not packages."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, HERE / f"{name.removeprefix('adapter_')}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


_load("adapter_fake_native")


@pytest.fixture(autouse=True)
def no_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says of OrbitKV, to people or to the tests beside these."""
    for name in [name for name in os.environ if name.startswith("ORBITKV_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = _load("adapter_fake_native")
    module.reset_manager()
    monkeypatch.setitem(sys.modules, "orbitkv._native", module)
    # Copies of these clients end with the test, whatever the adapter was told.
    monkeypatch.setattr("orbitkv.vllm.worker._NEVER_FREED", [])
    return module


@pytest.fixture
def manager(native: ModuleType) -> Any:
    return native.MANAGER


@pytest.fixture
def mini() -> ModuleType:
    """The module of the miniature engine."""
    return _load("adapter_engine")


@pytest.fixture
def make_engine(native: ModuleType, mini: ModuleType) -> Iterator[Callable[..., Any]]:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from orbitkv.vllm import OrbitKVConnector

    made = []

    def make(num_blocks: int = 64, config: Any = None, **settings: Any) -> Any:
        config = config or mini.vllm_config()
        config.kv_transfer_config.kv_connector_extra_config.update(settings)
        cache = mini.kv_cache_config(num_blocks)
        sides = [
            OrbitKVConnector(config, role, cache)
            for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
        ]
        engine = mini.Engine(*sides, num_blocks=num_blocks)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.connector.shutdown()
        engine.worker.shutdown()


@pytest.fixture
def engine(make_engine: Callable[..., Any]) -> Any:
    return make_engine()


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines logged by the adapter at INFO and above. vLLM's logger does not propagate to pytest's handler."""
    import logging

    from orbitkv.vllm import log

    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Collect(level=logging.INFO)
    level = log.logger.level
    log.logger.addHandler(handler)
    # Whatever level the environment asks for.
    log.logger.setLevel(logging.INFO)
    monkeypatch.setattr(log.once, "_said", set())
    yield said
    log.logger.setLevel(level)
    log.logger.removeHandler(handler)
