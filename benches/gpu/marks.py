"""Time stamps inside an engine core, for `timeline`: functions of the engine and of its connector are wrapped
in the process in which they run. For `LLM.collective_rpc`, on an engine of one worker, whose process is the
core's as well."""

from __future__ import annotations

import gc
import importlib
import threading
import time
from typing import Any

# What is stamped: a name, and `module:Class.method`.
OF_CORE = (
    ("arrive", "vllm.v1.engine.core:EngineCore.preprocess_add_request"),
    ("schedule", "vllm.v1.core.sched.scheduler:Scheduler.schedule"),
    ("update", "vllm.v1.core.sched.scheduler:Scheduler.update_from_output"),
)
OF_CONNECTOR = (
    ("match", "orbitkv.vllm.connector:OrbitKVConnector.get_num_new_matched_tokens"),
    ("allocated", "orbitkv.vllm.connector:OrbitKVConnector.update_state_after_alloc"),
    ("metadata", "orbitkv.vllm.connector:OrbitKVConnector.build_connector_meta"),
    ("fence", "orbitkv.vllm.worker:WorkerSide._fence"),
    ("report", "orbitkv.vllm.connector:OrbitKVConnector.update_connector_output"),
)
# The runner that CUDA gets by default.
OF_DEVICE = (
    ("execute", "vllm.v1.worker.gpu.model_runner:GPUModelRunner.execute_model"),
    ("prepare inputs", "vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs"),
    ("before forward", "vllm.v1.worker.gpu.kv_connector:ActiveKVConnector.pre_forward"),
    ("sample", "vllm.v1.worker.gpu.model_runner:GPUModelRunner.sample_tokens"),
    ("after forward", "vllm.v1.worker.gpu.kv_connector:ActiveKVConnector.post_forward"),
)
RESTORE = "orbitkv.vllm.worker:WorkerSide._restore"
COPIES_END_WITHIN_MS = 10_000

_lock = threading.Lock()
_marks: list[tuple[str, float, float]] = []


def install(_worker: Any, with_connector: bool, on_device: bool) -> None:
    """Begins to stamp. Once in a process."""
    connector = OF_CONNECTOR if with_connector else ()
    for name, target in (*OF_CORE, *connector, *(OF_DEVICE if on_device else ())):
        _wrap(name, target)
    if with_connector:
        _wrap_restores()
    gc.callbacks.append(_collected)


def take(_worker: Any) -> list[tuple[str, float, float]]:
    """What was stamped since the last call: name, begin and end in seconds of `time.monotonic`, which is the
    same in all processes of a host."""
    with _lock:
        taken = list(_marks)
        _marks.clear()
    return taken


def _add(name: str, begun: float) -> None:
    with _lock:
        _marks.append((name, begun, time.monotonic()))


def _wrap(name: str, target: str) -> None:
    owner, attribute = _owner(target)
    original = getattr(owner, attribute)

    def stamped(*args: Any, **kwargs: Any) -> Any:
        begun = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            _add(name, begun)

    setattr(owner, attribute, stamped)


def _wrap_restores() -> None:
    owner, attribute = _owner(RESTORE)
    original = getattr(owner, attribute)

    def restored(*args: Any) -> Any:
        begun = time.monotonic()
        load = original(*args)
        if load is not None:
            threading.Thread(target=_await, args=(load, begun), daemon=True).start()
        return load

    setattr(owner, attribute, restored)


def _await(load: Any, begun: float) -> None:
    if load.wait(COPIES_END_WITHIN_MS):
        _add("copies", begun)


def _owner(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner, _, attribute = path.partition(".")
    return getattr(importlib.import_module(module), owner), attribute


_gc_begun = 0.0


def _collected(phase: str, info: dict[str, Any]) -> None:
    global _gc_begun
    if phase == "start":
        _gc_begun = time.monotonic()
    elif info.get("generation") == 2 or time.monotonic() - _gc_begun > 0.0005:
        # No lock: a collection may come while this thread holds it.
        _marks.append((f"garbage collection {info.get('generation')}", _gc_begun, time.monotonic()))
