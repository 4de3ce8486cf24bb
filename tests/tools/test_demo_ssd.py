"""The demo's steps around the SSD tier, against a made-up manager that answers over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from demo import counters, processes, rounds
from demo.processes import DemoError, Processes
from demo.rounds import Stage
from demo.settings import Places
from demo.vllm import Vllm

Answer = tuple[int, Any]
Serve = Callable[[list[Answer]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a manager that gives these answers one by one, then the last one for ever; its address."""
    servers = []

    def start(answers: list[Answer]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                code, body = answers.pop(0) if len(answers) > 1 else answers[0]
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(code)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer  # noqa: N815 — the names that the base class calls

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def started(tmp_path: Path, serve: Serve) -> Iterator[Callable[[list[Answer]], Processes]]:
    """Processes of which only the manager is there, and answers so."""
    made = []

    def start(answers: list[Answer]) -> Processes:
        made.append(Processes(Vllm(), Places(programs=tmp_path, out=tmp_path)))
        made[-1]._manager_http = serve(answers)
        return made[-1]

    yield start
    for each in made:
        each.close()


Started = Callable[[list[Answer]], Processes]
PENDING = (409, {"dropped_pages": 0, "pending_bytes": 4096})
DROPPED = (200, {"dropped_pages": 7})


def stage(processes: Processes, said: list[str]) -> Stage:
    return Stage(processes, None, said.append)  # type: ignore[arg-type]


def test_pages_are_dropped_once_they_are_written(started: Started) -> None:
    said: list[str] = []
    stage(started([PENDING, PENDING, DROPPED]), said).drop_memory()
    assert "dropped 7 pages" in said[0]


def test_writes_that_never_end_are_an_error(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "WRITTEN_S", 0.0)
    with pytest.raises(DemoError, match="4096 bytes were not on the SSD"):
        stage(started([PENDING]), []).drop_memory()


def test_an_empty_memory_is_an_error(started: Started) -> None:
    with pytest.raises(DemoError, match="dropped no page"):
        stage(started([(200, {"dropped_pages": 0})]), []).drop_memory()


def test_another_refusal_is_an_error_with_its_words(serve: Serve) -> None:
    with pytest.raises(counters.CountersError, match="the core thread does not answer"):
        counters.drop_memory(f"http://{serve([(503, b'the core thread does not answer')])}")


def state(name: str) -> Answer:
    instances = [{"active": True, "engine": "vllm"}]
    return 200, {"ssd": [{"path": "/nvme", "state": name}], "instances": instances}


def test_a_manager_is_waited_for_until_its_directory_serves(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "POLL_S", 0.0)
    answers = [*[state("recovering")] * 5, state("serving")]
    started(answers).wait_serving()
    assert answers == [state("serving")]


@pytest.mark.parametrize("name", ["full", "read_only", "off", "stuck"])
def test_a_directory_that_does_not_serve_ends_the_demo(started: Started, name: str) -> None:
    with pytest.raises(DemoError, match=f"/nvme is '{name}'"):
        started([state(name)]).wait_serving()


def test_an_emptied_directory_is_gone(started: Started) -> None:
    made = started([state("serving")])
    made.ssd.mkdir()
    (made.ssd / "segment-1.okv").write_text("pages")
    made.empty_ssd()
    assert not made.ssd.exists()
