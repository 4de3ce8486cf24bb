"""The systems that are compared: vLLM alone, with OrbitKV, with its own offload, with PegaFlow.

Each engine is a `Child`; what a system needs beside it is started before and ended after it. A system that
is not there, or does not start, is left out with its reason: the others are measured all the same."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.gpu.child import Child
from benches.gpu.process import Manager, ProcessError, Server, wait_until
from benches.gpu.settings import GIB, EngineSettings

NATIVE, ORBITKV, OFFLOAD, PEGAFLOW = "native", "orbitkv", "vllm-offload", "pegaflow"
SYSTEMS = (NATIVE, ORBITKV, OFFLOAD, PEGAFLOW)
CONNECTOR = {"kv_role": "kv_both"}
ACTIVE_WITHIN_S = 30.0
# The longest pause of the connector between two offers of a page.
OFFERED_AGAIN_S = 0.7
STARTS_WITHIN_S = 300.0
# A peer does not tell when its saves have ended. Where they take longer, priming tries again.
PEER_SAVES_S = 0.25


class UnavailableError(Exception):
    """A system that cannot be measured here; the message says why."""


@dataclass
class System:
    """A running engine of one system. `manager` is OrbitKV's, `server` a peer's."""

    name: str
    engine: Child
    manager: Manager | None = None
    server: Server | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    owns_manager: bool = True

    def wait_started(self) -> System:
        """Waits until the engine answers, and OrbitKV is active in it. Raises `UnavailableError` where it
        will not be."""
        self.facts = self.engine.wait_built(STARTS_WITHIN_S)
        if self.manager is not None:
            manager = self.manager
            try:
                wait_until(lambda: manager.active_instances() > 0, "active", ACTIVE_WITHIN_S, every_s=0.1)
            except ProcessError:
                why = [line for line in self.engine.log_tail(20_000).splitlines() if "OrbitKV" in line]
                raise UnavailableError(f"the cache never became active: {' | '.join(why[-3:])}") from None
        return self

    def wait_saved(self, patiently: bool = False) -> None:
        """Waits until what was computed has been saved, as far as the system tells. `patiently` also waits
        for pages that OrbitKV offers again because memory was on its way; nobody else knows of these."""
        if self.name == NATIVE:
            return
        if self.manager is None:
            time.sleep(PEER_SAVES_S)
            return
        self.engine.call("settle")
        # The step that completes a page has ended before its save begins.
        time.sleep(0.05)
        self.manager.wait_saved()
        if patiently:
            self.manager.wait_unchanged("committed_pages", OFFERED_AGAIN_S)

    def close(self) -> None:
        """Ends engine and server."""
        self.engine.close()
        if self.server is not None:
            self.server.close()
        if self.manager is not None and self.owns_manager:
            self.manager.close()


@dataclass(frozen=True)
class Site:
    """Where a run works. `pool_bytes` is the host memory that each system's cache gets."""

    work: Path
    pool_bytes: int = 24 * GIB
    # `kv_connector_extra_config` of OrbitKV, beside the socket.
    connector: dict[str, Any] = field(default_factory=dict)
    # Of OrbitKV's cache manager, beside those of the part.
    manager_flags: tuple[str, ...] = ()

    def log(self, name: str) -> Path:
        """A log file; processes of one name append to it."""
        logs = self.work / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        return logs / f"{name}.log"

    def new_manager(self, *flags: str, pool_bytes: int | None = None) -> Manager:
        """A cache manager with a pool of that size."""
        return Manager(
            self.log("orbitkv-manager"), str(pool_bytes or self.pool_bytes), (*self.manager_flags, *flags)
        )


def begin(
    name: str,
    settings: EngineSettings,
    site: Site,
    *,
    manager: Manager | None = None,
    module: str = "orbitkv.vllm",
    target: str = "benches.gpu.decoder:Decoder",
) -> System:
    """Starts a system; its engine is being built when this returns. With a `manager`, OrbitKV's engine uses
    that one, and leaves it running. Raises `UnavailableError`."""
    owns = manager is None
    server = None
    transfer: dict[str, Any] | None = None
    # Engines that start together must not write what they compiled into one place.
    cache = Path(tempfile.gettempdir()) / "orbitkv-gpu-bench" / name
    environment = {**settings.environment(), "VLLM_CACHE_ROOT": str(cache)}
    if name == ORBITKV:
        manager = manager or _manager(site)
        transfer = orbitkv_transfer(manager, site.connector, module)
    elif name == OFFLOAD:
        transfer = {"kv_connector": "OffloadingConnector", **CONNECTOR}
        transfer["kv_connector_extra_config"] = {"cpu_bytes_to_use": site.pool_bytes}
    elif name == PEGAFLOW:
        server, port = _pegaflow_server(site)
        extra = {"pegaflow.host": "http://127.0.0.1", "pegaflow.port": port}
        transfer = {"kv_connector": "PegaKVConnector", "kv_connector_module_path": "pegaflow.connector"}
        transfer |= {**CONNECTOR, "kv_connector_extra_config": extra}
    options = settings.options(site.work / "models")
    arguments = {"options": options, "transfer": transfer, "weights_seed": settings.filled_with}
    engine = Child(target, arguments, site.log(name), environment)
    return System(name, engine, manager if name == ORBITKV else None, server, owns_manager=owns)


def orbitkv_transfer(manager: Manager, connector: dict[str, Any], module: str) -> dict[str, Any]:
    """The transfer configuration that `orbitkv run` writes."""
    return {
        "kv_connector": "OrbitKVConnector",
        "kv_connector_module_path": module,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": str(manager.socket), **connector},
        **CONNECTOR,
    }


def _manager(site: Site) -> Manager:
    try:
        # No more of it is used for that, but no more than half of a pool can be reserved: `registration`
        # could not have a smaller one grow by 16 GiB.
        return site.new_manager(pool_bytes=site.pool_bytes * 4 // 3)
    except ProcessError as error:
        raise UnavailableError(str(error)) from None


def _pegaflow_server(site: Site) -> tuple[Server, int]:
    if importlib.util.find_spec("pegaflow") is None:
        raise UnavailableError("the package pegaflow is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-c", "from pegaflow._server import main; main()"]
    command += ["--addr", f"127.0.0.1:{port}", "--http-addr", "127.0.0.1:0"]
    command += ["--pool-size", f"{max(site.pool_bytes // GIB, 1)}gb"]
    server = Server(command, site.log(PEGAFLOW))

    def answers() -> bool:
        server.check()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, "the PegaFlow server listens", within_s=90)
    except ProcessError as error:
        server.kill()
        raise UnavailableError(f"PegaFlow's server: {error}") from None
    return server, port


def orbitkv_commands() -> None:
    """Puts the commands of an unpacked wheel (`pip install --target DIR`, DIR on PYTHONPATH) on PATH."""
    spec = importlib.util.find_spec("orbitkv")
    if spec is not None and spec.submodule_search_locations:
        commands = Path(next(iter(spec.submodule_search_locations))).parent / "bin"
        if (commands / "orbitkv-cache-manager").exists():
            os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
