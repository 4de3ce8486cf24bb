"""The leader's queries: SGLang's page hashes in, tickets out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orbitkv.engine.native import load_native
from orbitkv.sglang.namespace import hash_bytes


class NativeAsker:
    """Asks the manager through the native scheduler client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._native = load_native()

    def ask(self, hashes: Sequence[str], deadline_ms: int) -> Any:
        """Begins a query. Without a manager it is a miss at once."""
        blob = b"".join(map(hash_bytes, hashes))
        try:
            return self._client.query(blob, group=0, deadline_ms=deadline_ms)
        except self._native.OrbitKVError:
            return None

    def prepare(self, hashes: Sequence[str]) -> Any:
        """Has the pages read ahead and held for a claim."""
        try:
            return self._client.prepare_prefix(b"".join(map(hash_bytes, hashes)), group=0)
        except self._native.OrbitKVError:
            return None

    def keep(self, preparation: Any) -> int:
        """Holds them for another second. The preparation's state."""
        return preparation.poll()

    def claim(self, preparation: Any, deadline_ms: int) -> Any:
        """The query that takes them over; an ordinary one where they are gone."""
        try:
            return preparation.claim(deadline_ms=deadline_ms)
        except self._native.OrbitKVError:
            return None

    def cancel(self, preparation: Any) -> None:
        """Gives them back."""
        preparation.cancel()

    def warm_up(self, hashes: Sequence[str]) -> bool:
        """Has the pages read ahead, for nobody in particular. Whether that could be asked for."""
        return self._client.warm_up(b"".join(map(hash_bytes, hashes)), group=0)

    def answer(self, query: Any) -> bytes | bool | None:
        """The ticket for all pages found, which hands them to the workers; None for a miss; False while there
        is no answer."""
        try:
            if query is None or (state := query.poll()) == self._native.MISS:
                return None
            return query.restore(0, query.pages) if state == self._native.READY else False
        except self._native.OrbitKVError:
            # The connection was lost since, and the lease with it.
            return None

    def timed_out(self, query: Any) -> bool:
        """Whether the client, or the manager, has ended it at its deadline without a page."""
        return query is not None and query.miss_reason == "deadline"

    def drop(self, query: Any) -> None:
        """Ends interest. Pages that were handed out stay until every worker is done with them."""
        if query is not None:
            query.release()
