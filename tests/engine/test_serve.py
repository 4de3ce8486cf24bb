"""`orbitkv run vllm serve`, end to end: one command starts the manager and the engine, requests come over
HTTP, clients go away when they like, and SIGTERM ends all of it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.holds import COPY_RESTORE, QUERY_REPLY, Holds
from support.multiprocess import worker_holds
from support.processes import descendants, is_alive
from support.prompts import restorable_tokens
from support.server import Server
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 300
HIT = restorable_tokens(TOKENS)
# Lookups wait as long as a test holds their answers.
CONNECTOR = {"load_mode": "async", "verify_restore": "all", "lookup_deadline_ms": 60_000}
# The engine's periodic log line, each second.
LOGGING = {"VLLM_LOGGING_LEVEL": "INFO", "VLLM_LOG_STATS_INTERVAL": "1"}
PAGE_BYTES = 65536  # 32 tokens, 4 layers, K and V, 2 heads of 64 bfloat16 numbers


@pytest.fixture(scope="module")
def server(test_dir: Path) -> Iterator[Server]:
    server = Server(
        Path(tempfile.mkdtemp(prefix="s-", dir=test_dir)), connector=CONNECTOR, environment=LOGGING
    )
    yield server
    server.close()


@pytest.fixture(scope="module")
def manager_holds(server: Server, test_dir: Path) -> Holds:
    return Holds(test_dir, server.manager.pid)


@pytest.fixture(scope="module")
def engine_holds(server: Server, test_dir: Path) -> Holds:
    return worker_holds(server.pid, test_dir)


def test_one_line_says_what_is_active(server: Server) -> None:
    lines = [line for line in server.log().splitlines() if line.startswith("OrbitKV: vLLM")]
    assert len(lines) == 1, server.log()
    assert f"manager pid {server.manager.pid} (started)" in lines[0]
    assert "pool 128" in lines[0]
    assert "/status" in lines[0]
    wait_until(lambda: "OrbitKV: active (self-test passed)" in server.log(), "the self-test's line")


def counted(server: Server, *names: str) -> list[float]:
    return [server.metric(f"vllm:orbitkv_{name}_total") for name in names]


def wait_counted(server: Server, name: str, counter: str) -> None:
    """Waits until a total of the engine is the manager's. Counts travel with steps: a request that is too
    short to have a page makes one."""
    wait_until(
        lambda: counted(server, name) == [server.manager.metrics()[counter]],
        f"{name} is {counter}",
        meanwhile=lambda: server.complete([10], 1),
    )


def test_metrics_of_the_engine_agree_with_the_managers(server: Server, new_prompt: Prompts) -> None:
    wait_until(lambda: server.manager.active_instances() == 1, "the instance is active")
    tokens = new_prompt(TOKENS)
    assert server.complete(tokens).cached == 0
    server.manager.wait_saved()
    wait_counted(server, "save_pages", "orbitkv_save_pages_committed_total")
    saved, saved_bytes, seconds = counted(server, "save_pages", "save_bytes", "save_seconds")
    assert saved >= TOKENS // 32
    assert saved_bytes == saved * PAGE_BYTES
    assert seconds > 0
    # Control: nothing was restored so far, and nothing is counted as such.
    loads = ("load_tokens", "load_pages", "load_bytes", "load_seconds", "load_failed_pages")
    assert counted(server, *loads) == [0, 0, 0, 0, 0]
    server.press_out()

    lookups, misses = counted(server, "lookups", "lookup_misses")
    assert misses == lookups > 0
    restored = server.complete(tokens)
    assert restored.cached == HIT
    wait_counted(server, "load_pages", "orbitkv_load_pages_total")
    assert counted(server, *loads[:3]) == [HIT, HIT // 32, HIT // 32 * PAGE_BYTES]
    assert server.metric("vllm:external_prefix_cache_hits_total") == HIT
    assert counted(server, "load_seconds")[0] > 0
    assert counted(server, "lookups", "lookup_misses") == [lookups + 1, misses]
    others = ("load_failed_pages", "load_bad_pages", "lookup_timeouts", "reconnects", "save_aborted_pages")
    assert counted(server, *others) == [0, 0, 0, 0, 0]
    line = re.compile(rf"KV Transfer metrics: orbitkv_load_tokens={HIT}, orbitkv_load_pages={HIT // 32},")
    wait_until(lambda: line.search(server.log()), "the engine's log line")

    # Control: the same request, when there is nothing to restore.
    server.press_out()
    assert server.manager.drop_memory() > 0
    assert server.complete(tokens).cached == 0
    wait_counted(server, "save_pages", "orbitkv_save_pages_committed_total")
    assert counted(server, "load_tokens") == [HIT]
    assert counted(server, "lookup_misses")[0] > misses


def test_streamed_requests_restored_generate_the_same_tokens(server: Server, new_prompt: Prompts) -> None:
    wait_until(lambda: server.manager.active_instances() == 1, "the instance is active")
    prompts = [new_prompt(tokens, index) for index, tokens in enumerate((TOKENS, 512, 100))]
    whole = [restorable_tokens(len(tokens)) for tokens in prompts]
    cold = [server.complete(tokens, 40) for tokens in prompts]
    warm = [server.complete(tokens, 40) for tokens in prompts]
    server.manager.wait_saved()
    server.press_out()
    before = server.manager.counters()["restored_pages"]
    hits = server.metric("vllm:external_prefix_cache_hits_total")
    restored = [server.complete(tokens, 40) for tokens in prompts]
    assert [result.cached for result in cold] == [0, 0, 0]
    assert [result.cached for result in warm] == whole, "the engine's own cache"
    assert [result.cached for result in restored] == whole
    assert server.manager.counters()["restored_pages"] - before == sum(whole) // 32
    assert server.metric("vllm:external_prefix_cache_hits_total") - hits == sum(whole)
    assert min(len(set(result.tokens)) for result in cold) > 20
    assert [len(result.tokens) for result in cold] == [40, 40, 40]
    assert [result.tokens for result in restored] == [result.tokens for result in cold]
    assert [result.tokens for result in warm] == [result.tokens for result in cold]
    server.manager.assert_drained()

    # Control: without the manager's pages the same round restores nothing.
    server.press_out()
    assert server.manager.drop_memory() > 0
    assert [server.complete(tokens, 1).cached for tokens in prompts] == [0, 0, 0]


def stored(server: Server, tokens: list[int]) -> list[int]:
    """Saves a prompt that the engine then no longer has; the tokens it generates."""
    result = server.complete(tokens)
    assert result.cached == 0
    server.manager.wait_saved()
    server.press_out()
    return result.tokens


def assert_serves_on(server: Server, tokens: list[int], expected: list[int]) -> None:
    """The end of each case: nothing is left, the prefix still hits, both processes are healthy."""
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "no request runs")
    wait_until(lambda: server.metric("vllm:num_requests_waiting") == 0, "no request waits")
    server.manager.assert_drained()
    server.press_out()
    result = server.complete(tokens)
    assert (result.cached, result.tokens) == (HIT, expected)
    server.manager.assert_drained()
    assert is_alive(server.pid)
    assert server.manager.active_instances() == 1


def test_case_a07_disconnect_before_the_first_token(
    server: Server, manager_holds: Holds, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    expected = stored(server, tokens)
    with manager_holds.held(QUERY_REPLY):
        stream = server.stream(tokens, 40)
        manager_holds.wait_reached(QUERY_REPLY)
        stream.disconnect()
        # The answer is still on its way, and nobody waits for it.
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 0, "the engine has let it go")
        server.manager.assert_drained()
    assert_serves_on(server, tokens, expected)


def test_case_a07_disconnect_during_the_restore(
    server: Server, engine_holds: Holds, new_prompt: Prompts
) -> None:
    tokens = new_prompt(TOKENS)
    expected = stored(server, tokens)
    with engine_holds.held(COPY_RESTORE):
        stream = server.stream(tokens, 40)
        engine_holds.wait_reached(COPY_RESTORE)
        stream.disconnect()
        # Others are served while the copy is still to come.
        assert server.complete(new_prompt(TOKENS, 1)).cached == 0
        assert server.manager.status()["load"]["inflight_bytes"] > 0
    assert_serves_on(server, tokens, expected)


def test_case_a07_disconnect_during_decode(server: Server, new_prompt: Prompts) -> None:
    tokens = new_prompt(TOKENS)
    expected = stored(server, tokens)
    generated = server.metric("vllm:generation_tokens_total")
    stream = server.stream(tokens, 1500)
    events = stream.events()
    received = sum(len(next(events)["choices"]) for _ in range(5))
    assert received == 5
    stream.disconnect()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "the engine has let it go")
    assert server.metric("vllm:generation_tokens_total") - generated < 1500, "it was not cut short"
    assert_serves_on(server, tokens, expected)


def test_sigterm_ends_engine_and_manager_and_leaves_nothing(server: Server) -> None:
    """The last test of the module: it stops the server."""
    started = [server.pid, *descendants(server.pid)]
    assert server.manager.pid in started
    assert len(started) >= 4, "run, engine front end, scheduler, worker, manager"
    assert server.terminate() == 0, server.log()[-2000:]
    wait_until(lambda: not any(is_alive(pid) for pid in started), "every process has ended")
    assert not server.socket.exists()
    assert not Path(f"{server.socket}.json").exists()
    left = [path.name for path in Path("/dev/shm").iterdir() if "orbitkv" in path.name]
    assert left == []
