"""`orbitkv run vllm serve`, as a user starts it, and a client that streams from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.manager import Manager
from support.models import tiny_model
from support.ports import free_port
from support.prompts import BLOCK_TOKENS, FILLER_SEED, prompt
from support.results import Result
from support.wait import wait_until

# Imports in three processes, on a busy machine.
START_S = 180.0
STOP_S = 60.0
REQUEST_S = 60.0
MODEL = "tiny"


class Server:
    """One `orbitkv run` with its engine and the manager that it starts on a socket in `directory`."""

    def __init__(
        self,
        directory: Path,
        *,
        connector: dict[str, Any],
        blocks: int = 128,
        max_model_len: int = 2048,
        environment: dict[str, str] | None = None,
        run_flags: tuple[str, ...] = ("--pool-size", "128mib"),
        engine_flags: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.socket = directory / "manager.sock"
        self.log_path = directory / "server.log"
        self._blocks = blocks
        self._max_model_len = max_model_len
        self._run_flags, self._engine_flags = run_flags, engine_flags
        self._port = free_port()
        self._fillers = 0
        variables = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # a way to reset the prefix cache
            # The engine's own commands are beside its Python.
            "PATH": f"{os.environ['PATH']}:{Path(sys.executable).parent}",
            **(environment or {}),
        }
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(connector), stdout=log, stderr=log, env=variables, start_new_session=True
            )
        try:
            wait_until(self._is_healthy, f"the server is ready; log {self.log_path}", within_s=START_S)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None
        self.manager = Manager(directory).attach(Path(f"{self.socket}.json"))

    def _command(self, connector: dict[str, Any]) -> list[str]:
        executable = shutil.which("orbitkv")
        assert executable, "orbitkv is not on PATH: run these tests by `make test`"
        # Only what the tests need: the connector itself comes from `orbitkv run`.
        transfer = {"kv_connector": "OrbitKVConnector", "kv_connector_extra_config": connector}
        command = [executable, "run", "--socket", str(self.socket), "--http-addr", "127.0.0.1:0"]
        command += [*self._run_flags, "vllm", "serve", str(tiny_model()), *self._engine_flags]
        command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--enforce-eager", "--block-size", str(BLOCK_TOKENS)]
        command += ["--max-model-len", str(self._max_model_len), "--max-num-seqs", "8"]
        command += ["--num-gpu-blocks-override", str(self._blocks), "--enable-prompt-tokens-details"]
        return [*command, "--kv-transfer-config", json.dumps(transfer)]

    @property
    def pid(self) -> int:
        """Of `orbitkv run`."""
        return self._process.pid

    def log(self) -> str:
        """What `orbitkv run` and the engine wrote so far."""
        return self.log_path.read_text(errors="replace")

    def terminate(self) -> int:
        """SIGTERM to `orbitkv run` alone; its exit status."""
        self._process.terminate()
        return self._process.wait(timeout=STOP_S)

    def kill(self) -> None:
        """Ends everything that was started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Ends it if a test has not done so."""
        if self._process.poll() is None:
            try:
                self.terminate()
            except subprocess.TimeoutExpired:
                self.kill()

    # HTTP ---------------------------------------------------------------------------------------------------

    def _is_healthy(self) -> bool:
        code = self._process.poll()
        assert code is None, f"orbitkv run exited with {code}:\n{self.log()[-4000:]}"
        try:
            return self._get("/health") is not None
        except OSError:
            return False

    def _get(self, path: str) -> str:
        url = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(url, timeout=REQUEST_S) as response:
            return response.read().decode()

    def metric(self, name: str) -> float:
        """Sum of the samples of a metric of the engine."""
        samples = self._get("/metrics").splitlines()
        lines = [line for line in samples if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"the engine has no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def reset(self) -> None:
        """Empties the engine's own prefix cache."""
        url = f"http://127.0.0.1:{self._port}/reset_prefix_cache"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=REQUEST_S):
            pass

    def press_out(self) -> None:
        """Overwrites the engine's memory with other prompts."""
        self.reset()
        tokens = self._max_model_len - 1
        for _ in range(-(-self._blocks * BLOCK_TOKENS // tokens)):
            self.complete(prompt(FILLER_SEED + self._fillers, tokens), 1)
            self._fillers += 1
        self.manager.wait_saved()
        self.reset()

    def complete(self, tokens: list[int], max_tokens: int = 8) -> Result:
        """One streamed request to its end."""
        stream = Stream(self._port, tokens, max_tokens)
        generated: list[int] = []
        cached: int | None = None
        for event in stream.events():
            for choice in event["choices"]:
                generated += choice.get("token_ids") or []
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
        stream.disconnect()
        assert cached is not None, "the stream had no usage"
        return Result(generated, cached)

    def stream(self, tokens: list[int], max_tokens: int) -> Stream:
        """A streamed request that the test reads itself."""
        return Stream(self._port, tokens, max_tokens)


class Stream:
    """One streamed completion; the request is sent at once."""

    def __init__(self, port: int, tokens: list[int], max_tokens: int) -> None:
        body = {
            "model": MODEL,
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)

    def events(self) -> Iterator[dict[str, Any]]:
        """Server-sent events up to the last one."""
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            text = line.decode().strip()
            if text == "data: [DONE]":
                return
            if text.startswith("data: "):
                event = json.loads(text.removeprefix("data: "))
                assert "error" not in event, event
                yield event

    def disconnect(self) -> None:
        """Closes the connection, wherever the request is."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()
