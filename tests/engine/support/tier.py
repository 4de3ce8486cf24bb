"""A slower tier behind the pool, and what is counted while pages come back from it."""

from __future__ import annotations

from support.engine import Engine
from support.wait import wait_until


class Counted:
    """What manager, adapter and native client have counted since."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = self._totals()

    def _totals(self) -> dict[str, int]:
        side = self._engine.scheduler.connector._scheduler
        return {
            **self._engine.manager.counters(),
            **{f"adapter_{name}": value for name, value in side._lookups.counters.items()},
            **{f"client_{name}": value for name, value in side._client.stats().items()},
        }

    def __getitem__(self, name: str) -> int:
        return self._totals().get(name, 0) - self._before.get(name, 0)


def stored(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Computes and saves prompts, and leaves them on the tier alone. Their cold tokens."""
    cold = []
    for tokens in prompts:
        engine.reset()
        result = engine.run(tokens)
        assert result.cached == 0
        cold.append(result.tokens)
        # More writes than may be under way at once are not done at all.
        wait_written(engine)
    leave_on_tier(engine)
    return cold


def wait_written(engine: Engine) -> None:
    """Waits until nothing is being written to the tier."""
    manager = engine.manager
    wait_until(lambda: manager.status()["tier"]["write_queue_pending"] == 0, "the tier has it")


def leave_on_tier(engine: Engine) -> None:
    """Empties the pool and the engine's memory once the tier has everything."""
    wait_written(engine)
    engine.manager.drop_memory()
    engine.reset()
    engine.kv.poison()


def reads_pending(engine: Engine) -> int:
    """Pages that the tier has not read yet."""
    return engine.manager.status()["tier"]["read_queue_pending"]
