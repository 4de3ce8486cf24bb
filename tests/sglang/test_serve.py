"""SGLang as a user starts it: `orbitkv run -- python -m sglang.launch_server …`."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from support.manager import Manager
from support.processes import descendants, is_alive
from support.sglang import PAGE_TOKENS, TREE_LINE, Sglang, restorable
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 400
ACTIVE_LINE = "OrbitKV: active (self-test passed)"


def orbitkv_run(directory: Path) -> tuple[str, ...]:
    """`orbitkv run` with a manager of its own on a socket in `directory`."""
    executable = shutil.which("orbitkv")
    assert executable, "orbitkv is not on PATH: run these tests by `make test`"
    socket = str(directory / "manager.sock")
    return (executable, "run", "--socket", socket, "--http-addr", "127.0.0.1:0", "--pool-size", "64mib", "--")


def attached(directory: Path) -> Manager:
    """Views of the manager that it has started."""
    return Manager(directory).attach(directory / "manager.sock.json")


def test_one_word_brings_the_cache_and_takes_everything_along(
    test_dir: Path, new_engine: Callable[..., Sglang], new_prompt: Prompts
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="r-", dir=test_dir))
    engine = new_engine(None, before=orbitkv_run(directory))
    wait_until(lambda: ACTIVE_LINE in engine.log(), "orbitkv run says that the cache is active")
    assert TREE_LINE in engine.log()
    assert engine.log().startswith("OrbitKV: SGLang 0.5.20 · pool")
    manager = attached(directory)
    tokens = new_prompt(TOKENS)
    cold = engine.run(tokens)
    manager.wait_saved()
    engine.press_out()
    again = engine.run(tokens)
    assert (again.restored, again.tokens) == (restorable(TOKENS), cold.tokens)
    manager.assert_drained()
    everything = [engine.pid, *descendants(engine.pid)]
    assert manager.pid in everything
    engine.terminate()
    assert not any(is_alive(pid) for pid in everything)


def test_pages_that_are_too_small_are_said_and_served_without_the_cache(
    test_dir: Path, new_engine: Callable[..., Sglang], new_prompt: Prompts
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="r-", dir=test_dir))
    engine = new_engine(None, before=orbitkv_run(directory), flags=("--page-size", "1"))
    assert "pages of 1 token are too small for the cache" in engine.log()
    wait_until(lambda: "OrbitKV: not active" in engine.log(), "orbitkv run says that it is not active")
    assert TREE_LINE not in engine.log()
    assert "OrbitKV off, serving without it: page size is 1" in engine.log()
    tokens = new_prompt(2 * PAGE_TOKENS)
    assert engine.run(tokens).tokens == engine.run(tokens).tokens
    assert json.loads(attached(directory).get("/status"))["instances"] == []
    engine.terminate()
