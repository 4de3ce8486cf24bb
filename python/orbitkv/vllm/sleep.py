"""Sleep mode: the engine unmaps KV memory, and later maps other memory at the same addresses.

vLLM 0.29.0 tells no connector of it. But whoever asks, memory is unmapped and mapped by the one allocator of
the process that it was made with; so the calls of that allocator are followed.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# The mechanism whose calls are followed; others may freeze or move a process in ways of their own.
BACKEND = "cumem"
KV_TAG = "kv_cache"
_FOLLOWED = "_orbitkv_followed"


class Owner(Protocol):
    """Who copies from and to KV memory."""

    def suspend(self) -> None:
        """KV memory is about to be unmapped. Raises if it must not be."""

    def resume(self) -> None:
        """KV memory is mapped again, with other bytes."""


def can_sleep(config: VllmConfig) -> bool:
    """Whether this engine may be put to sleep."""
    return bool(getattr(config.model_config, "enable_sleep_mode", False))


def why_not_followed(config: VllmConfig) -> str | None:
    """One clause naming a way of sleeping that is not understood, or None."""
    backend = getattr(config.model_config, "sleep_mode_backend", BACKEND)
    if can_sleep(config) and backend != BACKEND:
        return f"sleep_mode_backend is {backend!r}, which may take KV memory away unseen; only {BACKEND!r} is"
    return None


def private_scope(config: VllmConfig) -> str | None:
    """What the namespace of an engine that can sleep has to itself. Its weights may be exchanged while it
    sleeps, and nothing tells with which of them a page was computed; so nobody else may find its pages."""
    return str(config.kv_transfer_config.engine_id) if can_sleep(config) else None


def follow_sleep(owner: Owner) -> None:
    """Has `owner` told from now on. The allocator outlives an engine: the last owner is told, while it
    lives. Raises where there is no such allocator."""
    from vllm.device_allocator import get_mem_allocator_instance

    allocator = get_mem_allocator_instance()
    followed = getattr(allocator, _FOLLOWED, None)
    if followed is None:
        followed = _Followed(allocator)
        setattr(allocator, _FOLLOWED, followed)
    followed.owner = weakref.ref(owner)


class _Followed:
    """Stands before the calls of an allocator that unmap KV memory, and behind the one that maps it."""

    def __init__(self, allocator: Any) -> None:
        self.owner: Callable[[], Owner | None] = lambda: None
        # Whatever it keeps a copy of, putting it to sleep unmaps all.
        allocator.sleep = self._after_suspending(allocator.sleep, lambda *_, **__: True)
        allocator.discard = self._after_suspending(allocator.discard, _concerns_kv)
        allocator.wake_up = self._before_resuming(allocator.wake_up)

    def _after_suspending(
        self, call: Callable[..., None], concerns_kv: Callable[..., bool]
    ) -> Callable[..., None]:
        @functools.wraps(call)
        def unmap(*args: Any, **options: Any) -> None:
            owner = self.owner()
            if owner is not None and concerns_kv(*args, **options):
                owner.suspend()
            call(*args, **options)

        return unmap

    def _before_resuming(self, call: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(call)
        def map_again(*args: Any, **options: Any) -> None:
            call(*args, **options)
            owner = self.owner()
            if owner is not None and _concerns_kv(*args, **options):
                owner.resume()

        return map_again


def _concerns_kv(tags: tuple[str, ...] | list[str] | str | None = None) -> bool:
    return tags is None or KV_TAG in ((tags,) if isinstance(tags, str) else tags)
