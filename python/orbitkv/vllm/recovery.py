"""What the engine's scheduler does about a restore that failed in the step that needed it.

vLLM 0.29 takes the request's computed tokens back to the first bad block and schedules it again. Its
second model runner, the default on CUDA, counts computed tokens by itself and never hears of that; with
asynchronous scheduling the next step is under way by then, too. Seen on an H200: the step after that
reads out of bounds, and the engine is gone. It also leaves bad blocks in the prefix cache until the first
request that has them has computed them, and others read them meanwhile.

What scheduler and both runners can do is preempt a request. So requests that have a bad block are
preempted: what steps under way compute for them is dropped, bad blocks and those behind them leave the
prefix cache, and the requests come back as ones that were short of memory do.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from orbitkv.vllm.log import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.request import Request

_FUNCTION = "_handle_invalid_blocks"
# What is used of the engine beside its fields: function, and parameters by name.
_USED = (
    (Scheduler, _FUNCTION, ("self", "invalid_block_ids", "num_scheduled_tokens")),
    (Scheduler, "_preempt_request", ("self", "request", "timestamp", "drop_stale_output")),
    (KVCacheManager, "evict_blocks", ("self", "block_ids")),
    (KVCacheManager, "get_block_ids", ("self", "request_id")),
)


def preempt_failed_restores(connector: type) -> str | None:
    """Has schedulers whose connector is a `connector` recover so. Returns why that cannot be done with this
    engine; once in a process is enough, and more do no harm."""
    for owner, name, parameters in _USED:
        function = getattr(owner, name, None)
        if function is None or tuple(inspect.signature(function).parameters) != parameters:
            return f"{owner.__name__}.{name} of this vLLM is not the one that is known"
    handled = getattr(Scheduler, _FUNCTION)
    if not hasattr(handled, "of_orbitkv"):
        setattr(Scheduler, _FUNCTION, _recovering(handled, connector))
    return None


def _recovering(handled: Any, connector: type) -> Any:
    def handle_invalid_blocks(
        self: Scheduler, invalid_block_ids: set[int], num_scheduled_tokens: dict[str, int]
    ) -> set[str]:
        if not isinstance(self.connector, connector):
            return handled(self, invalid_block_ids, num_scheduled_tokens)
        for table in self.connector.left_tables():
            if (bad := _bad_part(table, invalid_block_ids)) is not None:
                self.kv_cache_manager.evict_blocks(bad)
        _drop_outputs_of_preempted(self, num_scheduled_tokens)
        preempted = _preempt_holders(self, invalid_block_ids)
        # What is left are restores between steps, whose requests do not run yet.
        return preempted | handled(self, invalid_block_ids, num_scheduled_tokens)

    handle_invalid_blocks.of_orbitkv = True  # type: ignore[attr-defined]
    # As the engine's own, for whoever looks at it.
    handle_invalid_blocks.__signature__ = inspect.signature(handled)  # type: ignore[attr-defined]
    return handle_invalid_blocks


def _bad_part(table: list[int], invalid: set[int]) -> set[int] | None:
    """The first of these blocks and all behind it, or None."""
    position = next((at for at, block in enumerate(table) if block in invalid), None)
    return None if position is None else set(table[position:])


def _drop_outputs_of_preempted(scheduler: Scheduler, step: Iterable[str]) -> None:
    """Requests of the step that lost their blocks while it was under way, for want of memory: the scheduler
    does not know any more which they were, and what the step sampled would be delivered. It is sampled again.
    """
    for request_id in step:
        request = scheduler.requests.get(request_id)
        if request is not None and request.num_stale_output_tokens > 0:
            request.drop_stale_output = True


def _preempt_holders(scheduler: Scheduler, invalid: set[int]) -> set[str]:
    """Preempts running requests that have one of these blocks; their names."""
    holders: list[tuple[Request, set[int]]] = []
    for request in scheduler.running:
        bad = _bad_part(scheduler.kv_cache_manager.get_block_ids(request.request_id)[0], invalid)
        if bad is not None and request.status is RequestStatus.RUNNING:
            holders.append((request, bad))
    now = time.monotonic()
    # The last one first: each goes to the head of those that wait.
    for request, bad in reversed(holders):
        scheduler.running.remove(request)
        scheduler.kv_cache_manager.evict_blocks(bad)
        scheduler._preempt_request(request, now, drop_stale_output=True)
        scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
    if holders:
        logger.warning("OrbitKV: a restore failed, %d requests are computed again", len(holders))
    return {request.request_id for request, _ in holders}
