"""Restore or recompute: asks the estimate on behalf of lookups and of reads ahead, and feeds it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from orbitkv.vllm.estimate import RestoreEstimate
from orbitkv.vllm.log import logger
from orbitkv.vllm.prefill import PrefillTimer

if TYPE_CHECKING:
    from orbitkv.engine.settings import Settings

# A pace close to the limit must not fill the log.
SAY_AGAIN_S = 60.0


class Worth:
    """Decides; with `refuse_slow_restores` off everything is worth its time. Nothing here waits.

    Refusals before a read are counted by the manager's answers, which tell what was stored and left there.
    """

    def __init__(
        self,
        client: Any,
        settings: Settings,
        *,
        block_tokens: int,
        page_bytes: int,
        world_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._is_on = settings.refuse_slow_restores
        self._most_ms = settings.lookup_deadline_ms
        self._clock = clock
        self.estimate = RestoreEstimate(
            page_tokens=block_tokens, copy_bytes=page_bytes, read_bytes=page_bytes * world_size
        )
        self._prefill = PrefillTimer()
        self._reads_seen = (0, 0, 0)
        self._refused: Counter[str] = Counter()
        self._speeds: dict[str, float] = {}
        self._said = False
        self._said_at = float("-inf")

    # Decisions --------------------------------------------------------------------------------------------

    def may_read(self) -> bool:
        """Whether a lookup may have pages read from the slower tier; False asks for those in memory alone."""
        if not self._is_on:
            return True
        self._take_reads()
        return self.estimate.may_read(self._clock())

    def may_read_ahead(self) -> bool:
        """Whether to read for a request that only waits. Probes are left to lookups, which see what comes of
        them."""
        if not self._is_on:
            return True
        self._take_reads()
        return not self.estimate.reads_are_slow

    def may_copy(self, pages: int) -> bool:
        """Whether so many pages in memory may be restored. To be asked once: a refusal counts."""
        if not self._is_on or self.estimate.may_copy(self._clock()):
            return True
        self._refused["refused_slow"] += 1
        self._refused["refused_slow_pages"] += pages
        return False

    def deadline_ms(self, pages: int) -> int:
        """How long a lookup for so many pages may take."""
        return self.estimate.deadline_ms(pages, self._most_ms) if self._is_on else self._most_ms

    # Measurements -----------------------------------------------------------------------------------------

    def step_begun(self, step: int, scheduled: Mapping[str, int], *, has_sync_loads: bool) -> None:
        """The engine begins a step."""
        if self._is_on:
            self._prefill.begin(step, scheduled, has_sync_loads=has_sync_loads, now=self._clock())

    def step_ended(self, step: int, loaded_bytes: int, load_seconds: float) -> None:
        """A step has ended, with what its workers have restored since the last one."""
        if not self._is_on:
            return
        now = self._clock()
        if (computed := self._prefill.end(step, now)) is not None:
            self.estimate.prefill.observe(*computed)
        self.estimate.observe_copies(loaded_bytes, load_seconds, now)

    def _take_reads(self) -> None:
        """What the native client has heard of reads since the last look."""
        stats = self._client.stats()
        total = (stats["tier_reads"], stats["tier_read_pages"], stats["tier_read_us"])
        queries, pages, micros = (new - old for new, old in zip(total, self._reads_seen, strict=True))
        if micros:  # pages that were read beside others wait for the next that took time of its own
            self._reads_seen = total
            self.estimate.observe_reads(pages, micros / 1e6, queries, self._clock())

    # For people -------------------------------------------------------------------------------------------

    def counters(self, client_stats: Mapping[str, int]) -> dict[str, int]:
        """Totals, by the names of `stats.COUNTERS`. Of lookups that asked for what is in memory alone, the
        client knows which had more on the tier."""
        estimate = self.estimate
        return {
            "refused_slow": self._refused["refused_slow"] + client_stats["tier_left"],
            "refused_slow_pages": self._refused["refused_slow_pages"] + client_stats["tier_left_pages"],
            "slow_probes": estimate.read_probes.count + estimate.copy_probes.count,
        }

    def take_speeds(self) -> dict[str, float]:
        """Speeds that have changed since the last call, by the names of `stats.GAUGES`, to three digits."""
        rates = {
            "prefill_tokens_per_second": self.estimate.prefill,
            "copy_bytes_per_second": self.estimate.copy,
            "tier_read_bytes_per_second": self.estimate.read,
        }
        speeds = {name: float(f"{rate.per_second:.3g}") for name, rate in rates.items() if rate.samples}
        if speeds == self._speeds:
            return {}
        before, self._speeds = self._speeds, speeds
        return {name: value for name, value in speeds.items() if before.get(name) != value}

    def say_change(self) -> None:
        """One line when restores begin to be refused, and one when they are not any more; once a minute at
        most."""
        estimate = self.estimate
        is_slow = estimate.reads_are_slow or estimate.copies_are_slow
        if is_slow == self._said or self._clock() - self._said_at < SAY_AGAIN_S:
            return
        self._said, self._said_at = is_slow, self._clock()
        if is_slow:
            logger.info(
                "OrbitKV: %s slower than computing: prefill %.0f tokens/s, copies %.3g bytes/s, reads %.3g "
                "bytes/s. Such pages are recomputed for now; refuse_slow_restores=false restores them all "
                "the same.",
                "restoring from memory is" if estimate.copies_are_slow else "reading from the slower tier is",
                estimate.prefill.per_second,
                estimate.copy.per_second,
                estimate.read.per_second,
            )
        else:
            logger.info("OrbitKV: restores are faster than computing again.")
