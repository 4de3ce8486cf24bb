"""Settings of an adapter: those that its engine hands over, then the environment, then defaults."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

LOAD_MODES = ("auto", "sync", "async")
COPY_METHODS = ("auto", "plain", "rows", "batch", "kernel")
# Settings that are environment variables too; where neither says anything, the default below holds.
SWITCHES = {
    "refuse_slow_restores": "ORBITKV_REFUSE_SLOW_RESTORES",
    "prepare_requests": "ORBITKV_PREPARE_REQUESTS",
    "queue_warmup": "ORBITKV_QUEUE_WARMUP",
    "trace_transfers": "ORBITKV_TRACE_TRANSFERS",
}
_VERIFY = re.compile(r"off|all|sample:[1-9][0-9]{0,8}")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names it, its value and what is accepted."""


def default_socket(environ: Mapping[str, str]) -> str:
    """The socket on which a cache manager started without `--socket` listens."""
    directory = environ.get("XDG_RUNTIME_DIR", "")
    if directory.startswith("/"):
        return f"{directory}/orbitkv/manager.sock"
    return f"/tmp/orbitkv-{os.geteuid()}/manager.sock"


@dataclass(frozen=True)
class Settings:
    """Effective settings of one adapter. Units are the last word of each name."""

    socket: str
    load_mode: str = "auto"
    # A restore inside the forward pass delays every request of that step, so with requests decoding it
    # is used only up to this estimated transfer time.
    sync_max_ms: float = 4.0
    lookup_wait_us: int = 200
    # How long the manager may read for a lookup. Its answer, with what is ready by then, may take 50 ms more.
    lookup_deadline_ms: int = 500
    save_fence_wait_ms: int = 50
    layer_wait_ms: int = 1000
    copy_threads: int = 2
    # Calls of the CUDA driver; "auto" chooses by the size of a layer's block.
    copy_method: str = "auto"
    verify_restore: str = "sample:16"
    admission_gate: bool = True
    # Restore nothing that computing the same tokens is estimated to be faster than.
    refuse_slow_restores: bool = True
    # Read the pages of waiting requests ahead: held for the request, or only brought into the pool.
    prepare_requests: bool = False
    queue_warmup: bool = False
    # JSON lines of what is asked for and restored; without a path, a file of the process's own in $TMPDIR.
    trace_transfers: bool = False
    trace_path: str = ""

    @classmethod
    def parse(
        cls,
        extra: Mapping[str, Any],
        environ: Mapping[str, str],
        *,
        source: str = "kv_connector_extra_config",
    ) -> Settings:
        """Reads `extra`, as `source` names it; raises `SettingsError` on an unknown key or a bad value."""
        known = {field.name: field.type for field in fields(cls)}
        for key in extra:
            if key not in known:
                raise SettingsError(_unknown(source, key, list(known)))
        values = {key: _checked(key, str(known[key]), value) for key, value in extra.items()}
        values.setdefault("socket", environ.get("ORBITKV_SOCKET") or default_socket(environ))
        values.setdefault("trace_path", environ.get("ORBITKV_TRACE_PATH", ""))
        for key, variable in SWITCHES.items():
            if (switch := _switch(variable, environ)) is not None:
                values.setdefault(key, switch)
        return cls(**values)


def _switch(variable: str, environ: Mapping[str, str]) -> bool | None:
    value = environ.get(variable, "")
    if value not in ("", "0", "1"):
        raise SettingsError(f"{variable} is {value!r}; it must be 1 (on) or 0 (off).")
    return value == "1" if value else None


def _unknown(source: str, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)
    return f"{source} has no setting {key!r}; did you mean {near[0]!r}? Known settings: {', '.join(known)}."


def _checked(key: str, kind: str, value: Any) -> Any:
    """The value in its type, or a `SettingsError`. A bool is never taken for a number."""
    if kind == "bool":
        if isinstance(value, bool):
            return value
        raise SettingsError(f"{key} is {value!r}; it must be true or false.")
    if kind == "str":
        return _checked_text(key, value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        raise SettingsError(f"{key} is {value!r}; it must be a number of at least 0.")
    if kind == "int" and value != int(value):
        raise SettingsError(f"{key} is {value!r}; it must be a whole number.")
    if key == "copy_threads" and not 1 <= value <= 64:
        raise SettingsError(f"copy_threads is {value!r}; it must be between 1 and 64.")
    return int(value) if kind == "int" else float(value)


def _checked_text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise SettingsError(f"{key} is {value!r}; it must be a non-empty string.")
    if key == "load_mode" and value not in LOAD_MODES:
        raise SettingsError(f"load_mode is {value!r}; it must be one of {', '.join(LOAD_MODES)}.")
    if key == "copy_method" and value not in COPY_METHODS:
        raise SettingsError(f"copy_method is {value!r}; it must be one of {', '.join(COPY_METHODS)}.")
    if key == "verify_restore" and not _VERIFY.fullmatch(value):
        raise SettingsError(
            f"verify_restore is {value!r}; it must be off, all or sample:N with N of at least 1."
        )
    return value
