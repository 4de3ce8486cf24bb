"""A real SGLang server on a CPU, and a client that speaks to it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.holds import Holds
from support.manager import Manager
from support.models import tiny_model
from support.ports import free_port
from support.processes import descendants
from support.prompts import FILLER_SEED, prompt
from support.wait import wait_until

PAGE_TOKENS = 64
# Imports in three processes, on a busy machine.
START_S = 180.0
STOP_S = 60.0
# Of one whose end nobody looks at: Python takes long to leave.
LEAVE_S = 3.0
REQUEST_S = 120.0
FLUSH_S = 30
TREE_LINE = "Tree cache initialized: source=registered('orbitkv') impl=OrbitKVRadixCache"

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # The allocator's kernels have no form for a CPU.
    "TRITON_INTERPRET": "1",
    # /health would otherwise send a request through the engine.
    "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "NO_PROXY": "127.0.0.1",
}
# In float32: in bfloat16, near ties between two tokens fall either way with what else is in the batch.
FLAGS = (
    *(
        "--device",
        "cpu",
        "--dtype",
        "float32",
        "--skip-tokenizer-init",
        "--attention-backend",
        "torch_native",
    ),
    *("--disable-cuda-graph", "--sampling-backend", "pytorch", "--mem-fraction-static", "0.2"),
    *("--page-size", str(PAGE_TOKENS), "--skip-server-warmup", "--enable-metrics", "--host", "127.0.0.1"),
)
CACHE_FLAGS = ("--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker")


def restorable(tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Most tokens of a prompt that can come from a cache: whole pages, and never the last token."""
    return (tokens - 1) // page_tokens * page_tokens


@dataclass(frozen=True)
class Answer:
    """One finished request. Of its prompt, `local` tokens came from the engine's own cache and `restored`
    tokens from the manager."""

    tokens: list[int]
    local: int
    restored: int
    finish_reason: str


class Sglang:
    """`python -m sglang.launch_server` with `tokens` of KV memory. Without a manager it has SGLang's own
    radix cache: the control. `config` is what `ORBITKV_CONFIG` says; `before` are words in front of the
    command, such as `orbitkv run`."""

    def __init__(
        self,
        manager: Manager | None,
        directory: Path,
        test_dir: Path,
        *,
        tokens: int = 4096,
        running: int = 8,
        config: dict[str, Any] | None = None,
        flags: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        wait_active: bool = True,
        before: tuple[str, ...] = (),
    ) -> None:
        self.manager = manager
        self.tokens = tokens
        self.port = free_port()
        self.log_path = directory / "engine.log"
        self._test_dir = test_dir
        self._wait_active = wait_active and manager is not None
        sizes = ("--max-total-tokens", str(tokens), "--max-running-requests", str(running))
        self._command = [
            *before,
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(tiny_model()),
        ]
        self._command += [*FLAGS, *sizes, "--port", str(self.port)]
        self._command += [*(CACHE_FLAGS if manager is not None else ()), *flags]
        ours = {"ORBITKV_CONFIG": json.dumps({"verify_restore": "all", **(config or {})})}
        if manager is not None:
            ours["ORBITKV_SOCKET"] = str(manager.socket)
        self._environment = {**os.environ, **ENVIRONMENT, **ours, **(environment or {})}
        # Ninja, which compiles the page hashes, is beside the engine's Python.
        self._environment["PATH"] = f"{os.environ['PATH']}:{Path(sys.executable).parent}"
        self._process: subprocess.Popen[bytes] | None = None
        self._fillers = itertools.count(FILLER_SEED)
        self._names = itertools.count()
        self._threads = ThreadPoolExecutor(max_workers=64)

    # Life ---------------------------------------------------------------------------------------------------

    def start(self) -> Sglang:
        """Starts the server and waits until it serves, with the cache if there is a manager."""
        before = self._instances() if self._wait_active else set()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        try:
            wait_until(self._is_healthy, f"the engine serves; log {self.log_path}", within_s=START_S)
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.log()[-4000:]}") from None
        # The first request of a server takes seconds: torch prepares what it needs.
        self.run(prompt(next(self._fillers), 2 * PAGE_TOKENS))
        if self._wait_active:
            wait_until(lambda: self._instances() - before, "the new engine is active")
        return self

    def wait_active(self) -> None:
        """Waits until a manager that was restarted has its self-test."""
        wait_until(self._instances, "the engine is active")

    def _instances(self) -> set[str]:
        """Engines that are active on its manager."""
        return {row["instance"] for row in self.manager.status()["instances"] if row["active"]}

    def _is_healthy(self) -> bool:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"the engine exited with {code}:\n{self.log()[-6000:]}"
        try:
            return self._request("GET", "/health")[0] == 200
        except OSError:
            return False

    @property
    def pid(self) -> int:
        """Of the process that was started."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the server and its scheduler live."""
        return self._process is not None and self._process.poll() is None and bool(self._schedulers())

    @property
    def holds(self) -> Holds:
        """Hold points of its scheduler, which also copies."""
        return Holds(self._test_dir, self.scheduler_pid)

    @property
    def rank_holds(self) -> list[Holds]:
        """The same of each rank, with several of them."""
        return [Holds(self._test_dir, pid) for pid in sorted(self._schedulers(), key=_title)]

    @property
    def scheduler_pid(self) -> int:
        """Process of its one rank."""
        [pid] = self._schedulers()
        return pid

    def _schedulers(self) -> list[int]:
        assert self._process is not None
        return [pid for pid in descendants(self._process.pid) if "sglang::scheduler" in _title(pid)]

    def log(self) -> str:
        """What it wrote so far."""
        return self.log_path.read_text(errors="replace")

    def terminate(self) -> int:
        """SIGTERM to the process that was started; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STOP_S)

    def kill(self) -> None:
        """SIGKILL to all of its processes."""
        if self._process is not None:
            # Every process of it is in this group, which was started here.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        """Ends it, in whatever state."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
        self.kill()

    def restart(self) -> Sglang:
        """Ends it and starts it again, on the same port."""
        self.close()
        return self.start()

    # Requests -----------------------------------------------------------------------------------------------

    def add(self, tokens: Sequence[int], max_tokens: int = 8, **options: Any) -> Pending:
        """Sends a greedy request that generates exactly `max_tokens`; `options` go into its body."""
        name = f"{self.port}-{next(self._names)}"
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        body = {"rid": name, "input_ids": list(tokens), "sampling_params": sampling, **options}
        return Pending(name, self._threads.submit(self._generate, body))

    def run(self, tokens: Sequence[int], max_tokens: int = 8, **options: Any) -> Answer:
        """One request alone."""
        return self.add(tokens, max_tokens, **options).result()

    def run_all(self, prompts: Sequence[Sequence[int]], max_tokens: int = 8, **options: Any) -> list[Answer]:
        """All at once; their answers in order."""
        pending = [self.add(tokens, max_tokens, **options) for tokens in prompts]
        return [one.result() for one in pending]

    def abort(self, name: str) -> None:
        """Ends a request early; no error if it is over."""
        status, text = self._request("POST", "/abort_request", {"rid": name})
        assert status == 200, f"abort: {status} {text}"

    def flush(self) -> None:
        """Empties the engine's own cache. Bytes stay in its memory until they are overwritten."""
        status, text = self._request("POST", f"/flush_cache?timeout={FLUSH_S}")
        assert status == 200, f"flush: {status} {text}"

    def clear(self) -> bool:
        """Has what is behind its own cache forgotten; whether it says that this was done."""
        return self._request("POST", "/hicache/storage-backend/clear")[0] == 200

    def update_weights(self, path: Path) -> None:
        """Replaces the weights by those of a model directory, as a trainer does."""
        status, text = self._request("POST", "/update_weights_from_disk", {"model_path": str(path)})
        assert status == 200, f"update of weights: {status} {text}"

    def press_out(self) -> None:
        """Overwrites the engine's memory with other prompts, then empties its cache: what comes back after
        this was copied back."""
        for _ in range(2):
            self.run(prompt(next(self._fillers), self.tokens // 2 - 2 * PAGE_TOKENS), 1)
        self.settle()
        self.flush()

    def settle(self) -> None:
        """Waits until nothing is being saved."""
        if self.manager is not None and self.manager.is_running:
            self.manager.wait_saved()

    def metric(self, name: str, labels: str = "") -> float:
        """Sum of the samples of a metric whose labels contain `labels`."""
        status, text = self._request("GET", "/metrics")
        assert status == 200, text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
        assert lines, f"the engine has no metric {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if labels in line)

    def _generate(self, body: dict[str, Any]) -> Answer:
        status, text = self._request("POST", "/generate", body)
        assert status == 200, f"generate: {status} {text}"
        answer = json.loads(text)
        meta = answer["meta_info"]
        # Of a request that was aborted before it started there are neither tokens nor details.
        local = (meta.get("cached_tokens_details") or {}).get("device", 0)
        restored = meta.get("cached_tokens", 0) - local
        return Answer(answer.get("output_ids") or [], local, restored, meta["finish_reason"]["type"])

    def _request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_S)
        try:
            data = b"" if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@dataclass(frozen=True)
class Pending:
    """A request that was sent."""

    name: str
    future: Future[Answer]

    def done(self) -> bool:
        """Whether it has ended."""
        return self.future.done()

    def result(self) -> Answer:
        """Its answer; raises `AssertionError` if it got none."""
        return self.future.result(timeout=REQUEST_S)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
