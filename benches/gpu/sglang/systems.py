"""The systems that are compared: SGLang alone, with HiCache, with OrbitKV."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benches.gpu.child import Child
from benches.gpu.process import Manager, ProcessError
from benches.gpu.sglang import probe
from benches.gpu.sglang.settings import SglangSettings
from benches.gpu.systems import NATIVE, ORBITKV, Site, System, UnavailableError

HICACHE = "hicache"
SYSTEMS = (NATIVE, ORBITKV, HICACHE)
# What `orbitkv run` adds to the command line.
ORBITKV_OPTIONS = {"radix_cache_backend": "orbitkv", "enable_unified_cache_external_linker": True}


def begin(name: str, settings: SglangSettings, site: Site, *, manager: Manager | None = None) -> System:
    """Starts a system; its engine is being built when this returns. With a `manager`, OrbitKV's engine uses
    that one, and leaves it running. Raises `UnavailableError`."""
    owns = manager is None
    options = settings.options(site.work / "models")
    environment = settings.environment()
    if name == ORBITKV:
        manager = manager or _manager(site)
        options |= ORBITKV_OPTIONS
        environment["ORBITKV_SOCKET"] = str(manager.socket)
        environment["ORBITKV_CONFIG"] = json.dumps(site.connector)
    elif name == HICACHE:
        options |= hicache_options(site.pool_bytes)
    if settings.has_probe:
        environment |= _with_probe(site.work / "probe", settings)
    arguments = {"options": options, "weights_seed": settings.filled_with, "has_probe": settings.has_probe}
    engine = Child("benches.gpu.sglang.engine:Engine", arguments, site.log(name), environment)
    return System(name, engine, manager if name == ORBITKV else None, owns_manager=owns)


def hicache_options(pool_bytes: int) -> dict[str, Any]:
    """SGLang's host cache as it is by default, of this size: pages are written through as they are
    computed."""
    size = max(pool_bytes // 10**9, 1)  # the flag is in GB
    return {"enable_hierarchical_cache": True, "hicache_size": size, "hicache_write_policy": "write_through"}


def _with_probe(directory: Path, settings: SglangSettings) -> dict[str, str]:
    """SGLang finds plugins among the installed packages, wherever the path leads."""
    path = [str(probe.write_package(directory)), os.environ.get("PYTHONPATH", "")]
    zeroed = {probe.ZERO_VARIABLE: "1"} if settings.is_zeroed else {}
    return {"PYTHONPATH": os.pathsep.join(part for part in path if part), **zeroed}


def _manager(site: Site) -> Manager:
    try:
        return site.new_manager()
    except ProcessError as error:
        raise UnavailableError(str(error)) from None
