"""SGLang's radix cache with an admission gate and pages that come from, and go to, the cache manager.

Only what surrounds the tree is overridden: the calls by which the scheduler asks whether a waiting request
may start, and the events of a step. Matching, allocation, insertion and eviction are the tree's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinkerWrapper
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from orbitkv.sglang.namespace import hash_bytes

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, MatchPrefixParams, MatchResult
    from sglang.srt.mem_cache.hicache_storage import PoolTransfer
    from sglang.srt.mem_cache.unified_cache.unified_tree_core_interface import NodeId

    from orbitkv.sglang.linker import OrbitKVLinker


class _Wrapper(UnifiedCacheLinkerWrapper):
    """Tells the linker where in its chain a node is: a page is kept no longer than the page before it."""

    cache_linker: OrbitKVLinker

    def _offload_node(self, node_id: NodeId, transfers: list[PoolTransfer]) -> None:
        before = self.cache.get_prefix_hash_values(node_id)
        self.cache_linker.place = (hash_bytes(before[-1]) if before else None, len(before))
        super()._offload_node(node_id, transfers)


class OrbitKVRadixCache(UnifiedRadixCache):
    """The tree cache of one rank."""

    serves_orbitkv = True
    _ours: OrbitKVLinker

    def init_cache_linker(self, cache_linker: OrbitKVLinker) -> None:
        """Attaches the linker."""
        self._ours = cache_linker
        self.linker = _Wrapper(self, cache_linker)

    # Gate -------------------------------------------------------------------------------------------------

    def is_backuped(self, node_id: NodeId) -> bool:
        """Whether more of a request may be stored behind this node: always, the manager knows."""
        return True

    def prefetch_from_storage(self, request: CacheRequestHandle, *args: Any, **kwargs: Any) -> None:
        """A request was queued, or has lost pages of the device. The match that the scheduler made just
        before has told the linker which pages it lacks."""
        self._ours.gate(request.rid)

    def check_prefetch_progress(self, request: CacheRequestHandle) -> bool:
        """Whether a waiting request may start. One that may not is passed over, and no other with it."""
        return self._ours.may_start(request.rid)

    def pop_prefetch_loaded_span(self, request: CacheRequestHandle) -> tuple[int, int | None]:
        """Nothing is loaded before admission."""
        return 0, None

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """As the tree matches. A request of which the device has all needs nothing more from the manager."""
        before = self._ours.lookups
        result = super().match_prefix(params)
        if params.req is not None and self._ours.lookups == before:
            self._ours.release(params.req.rid)
        return result

    def finish_storage_prefetch_admission(
        self, request: CacheRequestHandle, fulfilled_tokens: int, reason: str | None
    ) -> None:
        """The request has started."""
        self._ours.release(request.rid)

    def discard_storage_prefetch_accounting(self, request: CacheRequestHandle) -> None:
        """The request has ended before it started, or it has started after it had been put back."""
        self._ours.release(request.rid)

    # Clear ------------------------------------------------------------------------------------------------

    def clear_storage_backend(self) -> bool:
        """Has the manager forget what was saved; False if it has not confirmed that. The device keeps what it
        has: that is what a flush is for."""
        return self._ours.forget()

    # Step -------------------------------------------------------------------------------------------------

    def check_hicache_events(self) -> None:
        """Once a scheduler step."""
        self._ours.step()
        super().check_hicache_events()
