"""The leader's reservations, over the native scheduler client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orbitkv.engine.native import load_native
from orbitkv.sglang.saves import Grant

if TYPE_CHECKING:
    from orbitkv.sglang.saves import Offload


class _Refused:
    """A reservation that could not be asked for."""

    def poll(self) -> bool:
        return True

    def statuses(self) -> list[int]:
        return []

    def abandon(self) -> None:
        return None


class NativeReserver:
    """Asks the manager for slots."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._native = native = load_native()
        self._kinds = {
            native.GRANT_SLOTS: Grant(is_slot=True),
            native.GRANT_EXISTS: Grant(is_stored=True),
            native.GRANT_BUSY: Grant(is_busy=True),
        }

    def reserve(self, offload: Offload, pages: range) -> Any:
        """Asks for slots for these pages of an offload."""
        try:
            return self._client.reserve(
                b"".join(offload.hashes[pages.start : pages.stop]),
                parent=offload.hashes[pages.start - 1] if pages.start else offload.parent,
                first_depth=offload.depth + pages.start,
                group=0,
            )
        except self._native.OrbitKVError:
            return _Refused()

    def grants(self, reservation: Any, count: int) -> list[Grant] | None:
        """What became of each of `count` pages, or None while there is no answer. Without one, as after the
        loss of the connection, all are refused."""
        if not reservation.poll():
            return None
        statuses = reservation.statuses()
        if len(statuses) != count:
            return [Grant()] * count
        return [self._kinds.get(status, Grant()) for status in statuses]

    def ticket(self, reservation: Any, places: list[int]) -> bytes | None:
        """Ticket for granted pages, by their place in the reservation; None if the manager that granted them
        is gone."""
        try:
            return reservation.ticket(places)
        except self._native.OrbitKVError:
            return None

    def abandon(self, reservation: Any) -> None:
        """Gives back every granted page without a ticket."""
        reservation.abandon()
