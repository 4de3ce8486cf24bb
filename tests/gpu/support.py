"""Engines of a test module, and what tests ask of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benches.gpu.growth import grow
from benches.gpu.process import Manager, wait_until
from benches.gpu.prompts import restorable_tokens
from benches.gpu.settings import GIB
from benches.gpu.systems import NATIVE, ORBITKV, Site, System, begin

GENERATED = 32
RESTORE_TRIES = 6
STORE_TRIES = 24


class Engines:
    """Starts systems of an engine with `begin` and keeps them until `close`; several started in one call
    start side by side. `settings` are those of that engine."""

    def __init__(self, site: Site, settings: Any, begin: Callable[..., System] = begin) -> None:
        self._site = site
        self._begin = begin
        self.settings = settings
        self._systems: list[System] = []
        self._managers: list[Manager] = []

    def new_manager(self, *flags: str) -> Manager:
        """A cache manager."""
        self._managers.append(self._site.new_manager("--segment-size", "128mib", *flags))
        return self._managers[-1]

    def begin(self, manager: Manager | None, *, module: str | None = None, **changes: Any) -> System:
        """An engine on that manager, or without a cache behind it; `wait_started` of it is the caller's. A
        `module` has another connector than OrbitKV's, for vLLM."""
        name = NATIVE if manager is None else ORBITKV
        settings = self.settings.with_(**changes)
        options = {"module": module} if module else {}
        self._systems.append(self._begin(name, settings, self._site, manager=manager, **options))
        return self._systems[-1]

    def start(self, manager: Manager | None, **options: Any) -> System:
        """The same, once it is there."""
        return ready(self.begin(manager, **options))

    def close(self) -> None:
        """Ends engines, then managers."""
        for system in self._systems:
            system.close()
        for manager in self._managers:
            manager.close()


def ready(system: System, pool_bytes: int = 3 * GIB) -> System:
    """Waits for an engine, and has the pool grow so far that every page of a test finds room."""
    system.wait_started()
    if system.manager is not None:
        grow(system, pool_bytes)
        system.engine.call("reset")
    return system


def ask(system: System, tokens: list[int], generated: int = GENERATED) -> dict[str, Any]:
    """One request; what was computed by it is saved when this returns."""
    answer = system.engine.call("ask", tokens, generated, within_s=300)
    system.wait_saved()
    return answer


def hit(system: System, tokens: list[int], generated: int = GENERATED) -> list[int]:
    """What follows a prompt whose KV the engine holds itself: what a restore must generate. What follows
    one that is computed may differ in late tokens where an engine rounds differently with another number of
    tokens at once."""
    ask(system, tokens, generated)
    return ask(system, tokens, generated)["tokens"]


def store(system: System, tokens: list[int]) -> None:
    """Has a prompt saved whole. Pages for which there was no room, or too much under way, are computed
    again."""
    for _ in range(STORE_TRIES):
        system.wait_saved(patiently=True)
        system.engine.call("reset")
        if ask(system, tokens, 1)["cached"] >= restorable_tokens(len(tokens)):
            return
    raise AssertionError(f"a prompt of {len(tokens)} tokens was not saved whole in {STORE_TRIES} tries")


def forget(system: System, *stored: list[int]) -> None:
    """Sees that these prompts are saved whole. Then empties the engine's own cache and fills its memory
    with other prompts, so that nothing of what it held can be found or read by accident."""
    for tokens in stored:
        store(system, tokens)
    system.engine.call("reset")
    system.engine.call("press_out", within_s=300)
    system.wait_saved()
    system.engine.call("reset")


def in_the_middle(manager: Manager, what: str, within_s: float) -> bool:
    """Looks until bytes of a "load" or "save" are under way; False if none was seen in time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if manager.status()[what]["inflight_bytes"] > 0:
            return True
    return False


def wait_active(manager: Manager, instances: int = 1) -> None:
    """Waits until so many engines have attached and passed their self-test."""
    wait_until(lambda: manager.active_instances() == instances, f"{instances} engines are active")


def wait_drained(manager: Manager) -> None:
    """The drain check: everything that work has reserved came back."""
    wait_until(lambda: not not_drained(manager.status()), f"drained: {not_drained(manager.status())}")


def not_drained(status: dict[str, Any]) -> dict[str, int]:
    """Gauges that are zero in a manager without work, and are not."""
    query = status["query"]
    gauges = {
        "reserved_bytes": query["reserved_bytes"],
        "leases": query["leases"],
        "reservations": status["save"]["reservations"],
        "save_inflight_bytes": status["save"]["inflight_bytes"],
        "load_inflight_bytes": status["load"]["inflight_bytes"],
        "quarantined_bytes": status["pool"]["quarantined_bytes"],
        "sessions_unfinished": status["sessions"]["unfinished"],
        **query["operations"],
    }
    return {name: value for name, value in gauges.items() if value}
