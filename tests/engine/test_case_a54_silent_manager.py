"""An engine that starts before its manager, or where nobody answers, serves, and attaches later (A-54)."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.engine import Engine, Result, scheduler_client
from support.manager import Manager
from support.prompts import restorable_tokens
from support.wait import wait_until

Prompts = Callable[..., list[int]]
TOKENS = 100
HIT = restorable_tokens(TOKENS)
SERVED = 5


class SilentListener:
    """Takes every connection at a path, reads what is sent, and never answers."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self.accepted: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                self.accepted.append(self._socket.accept()[0])
            except OSError:
                return

    def stop_listening(self) -> None:
        """The path is free for another; connections stay open."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def heard(self, index: int) -> bytes:
        """What came first on a connection."""
        return self.accepted[index].recv(1 << 16)

    def close(self) -> None:
        """Ends the connections too."""
        for connection in self.accepted:
            connection.close()


@contextmanager
def info_lines() -> Iterator[list[str]]:
    """What the adapter says at INFO and above."""
    from orbitkv.vllm.log import logger

    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, level = Collect(logging.INFO), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield said
    logger.setLevel(level)
    logger.removeHandler(handler)


def serve_without_cache(engine: Engine, tokens: list[int]) -> Result:
    """Several requests of one prompt, each computed from its first token; the first result."""
    results = []
    for _ in range(SERVED):
        engine.add("served", tokens)
        results.append(engine.finish(["served"])["served"])
        engine.reset()
    assert {result.cached for result in results} == {0}
    assert {tuple(result.tokens) for result in results} == {tuple(results[0].tokens)}
    assert not scheduler_client(engine).active
    return results[0]


def assert_attaches_and_hits(engine: Engine, tokens: list[int], cold: Result) -> None:
    """By itself: the next request is saved, the one after it is a hit."""
    engine.wait_active()
    engine.reset()
    assert engine.run(tokens).cached == 0
    engine.press_out()
    engine.kv.poison()
    hit = engine.run(tokens)
    assert (hit.cached, hit.tokens) == (HIT, cold.tokens)
    engine.manager.assert_drained()
    assert engine.manager.active_instances() == 1


def test_case_a54_engine_before_the_manager(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], new_prompt: Prompts
) -> None:
    manager = new_manager()
    manager.stop()
    tokens = new_prompt(TOKENS)
    with info_lines() as said:
        engine = new_engine(manager, connector={"verify_restore": "all"}, wait_active=False)
        cold = serve_without_cache(engine, tokens)
        assert len([line for line in said if "not active" in line]) == 1, said
        assert f"no manager at {manager.socket}" in next(line for line in said if "not active" in line)
        manager.start()
        assert_attaches_and_hits(engine, tokens, cold)
        assert len([line for line in said if line.startswith("OrbitKV active")]) == 1, said


def test_case_a54_manager_address_that_never_answers(
    new_manager: Callable[..., Manager], new_engine: Callable[..., Engine], new_prompt: Prompts
) -> None:
    """The silent one holds its connections even when a manager has taken its place: the engine must give them
    up by itself."""
    manager = new_manager()
    manager.stop()
    tokens = new_prompt(TOKENS)
    silent = SilentListener(manager.socket)
    try:
        with info_lines() as said:
            engine = new_engine(manager, connector={"verify_restore": "all"}, wait_active=False)
            wait_until(lambda: len(silent.accepted) >= 2, "scheduler and worker are connected")
            assert silent.heard(0), "nobody said hello"
            cold = serve_without_cache(engine, tokens)
            assert any("not active" in line for line in said), said
        silent.stop_listening()
        manager.socket.unlink(missing_ok=True)
        manager.start()
        assert_attaches_and_hits(engine, tokens, cold)
    finally:
        silent.close()
