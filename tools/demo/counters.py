"""Counters of the engine and of the cache manager, read over HTTP."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, fields
from typing import Any

from demo.engine import Engine

GET_S = 10.0
# The manager itself waits 10 s for its writes before it refuses.
DROP_S = 20.0
# Loopback only: a proxy for the outside is never asked.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# The manager puts a header of its own before each page.
PAGE_HEADER_BYTES = 4096


class CountersError(Exception):
    """Counters could not be read."""


def get(url: str) -> str:
    """Body of a GET; `CountersError` if there is no good answer."""
    try:
        with _OPENER.open(url, timeout=GET_S) as response:
            return response.read().decode()
    except (OSError, urllib.error.URLError) as error:
        raise CountersError(f"GET {url}: {error}") from error


def is_healthy(base: str) -> bool:
    """Whether `/health` is answered with success."""
    try:
        get(f"{base}/health")
    except CountersError:
        return False
    return True


def status(manager: str) -> dict[str, Any]:
    """The manager's `/status`."""
    return json.loads(get(f"{manager}/status"))


def drop_memory(manager: str) -> dict[str, int]:
    """Has the manager forget its pages in memory once all are written. What it answers: `dropped_pages`, and
    with `pending_bytes` it has dropped nothing, because these were still being written."""
    url = f"{manager}/cache/memory/drop?wait=1"
    request = urllib.request.Request(url, data=b"", method="POST")
    try:
        with _OPENER.open(request, timeout=DROP_S) as response:
            return json.loads(response.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        if error.code == http.client.CONFLICT:
            return json.loads(text)
        raise CountersError(f"POST {url}: {error}: {text}") from error
    except OSError as error:
        raise CountersError(f"POST {url}: {error}") from error


@dataclass(frozen=True)
class Ahead:
    """What was read ahead of demand, in bytes, and how often a request claimed it."""

    read_bytes: int
    restored_bytes: int
    claims: int

    @classmethod
    def read(cls, manager: str) -> Ahead:
        """As it is now."""
        counted = status(manager)["counters"]
        return cls(counted["ahead_read_bytes"], counted["ahead_restored_bytes"], counted["claims"])

    def __sub__(self, other: Ahead) -> Ahead:
        return Ahead(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Counters:
    """What was counted since engine and manager started, or between two looks. In tokens and pages."""

    # Prompt tokens by where their KV came from.
    computed_tokens: int
    local_tokens: int
    restored_tokens: int
    # Prompt tokens that the engine's own cache lacked and the manager had.
    external_hit_tokens: int
    # Pages asked of the manager, by where they were found.
    ram_pages: int
    ssd_pages: int
    missed_pages: int
    # Restored bytes that landed in the engine, every page with the checksum it was saved with.
    verified_bytes: int
    # Pages that were not what had been saved, or could not be read, wherever it was noticed.
    bad_pages: int

    @classmethod
    def read(cls, engine: Engine, address: str, manager: str) -> Counters:
        """Both sides as they are now; `address` is the engine's."""
        ours = engine.counters(get(f"{address}/metrics"))
        report = status(manager)
        pages = report["counters"]

        return cls(
            computed_tokens=ours.computed_tokens,
            local_tokens=ours.local_tokens,
            restored_tokens=ours.restored_tokens,
            external_hit_tokens=ours.external_hit_tokens,
            ram_pages=pages["ram_pages"],
            ssd_pages=pages["tier_pages"],
            missed_pages=pages["missed_pages"],
            verified_bytes=ours.verified_bytes,
            bad_pages=ours.failed_pages
            + pages["bad_pages"]
            + pages["failed_reads"]
            + sum(row["mismatches"] for row in report["ssd"]),
        )

    @classmethod
    def zero(cls) -> Counters:
        """Nothing counted."""
        return cls(*(0 for _ in fields(cls)))

    @property
    def requested_pages(self) -> int:
        """Pages asked of the manager."""
        return self.ram_pages + self.ssd_pages + self.missed_pages

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


def page_bytes(report: dict[str, Any]) -> int:
    """Payload bytes of a page, from the pool's gauges of a drained manager; 0 for an empty pool."""
    pool = report["pool"]
    return pool["used_bytes"] // pool["pages"] - PAGE_HEADER_BYTES if pool["pages"] else 0
