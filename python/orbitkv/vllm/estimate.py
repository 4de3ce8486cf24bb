"""Which restores take longer than computing the same tokens, from moving averages of three speeds.

A page is worth reading if its read and its copy take less time than its tokens take to compute, and worth
copying if the copy alone does. All three times grow with the number of pages, so neither answer depends on
how long the prefix is: of a prefix whose head is in memory and whose rest is not, the head is restored.

Nothing is refused before each speed that speaks against it was measured `MIN_SAMPLES` times, and nothing for
ever: every now and then a restore is let through to measure it again. No clock and no engine in here: times
come with each call, in monotonic seconds.
"""

from __future__ import annotations

import math

MIN_SAMPLES = 4
# After so many samples an older one weighs half as much.
HALF_LIFE_SAMPLES = 8
_DECAY = 0.5 ** (1 / HALF_LIFE_SAMPLES)
# From a refusal to the first probe; the pause doubles with each probe that finds it slow still.
PROBE_FIRST_S = 5.0
PROBE_MOST_S = 60.0
# A probe may find nothing to measure. Until one does, the next is let through so much later.
PROBE_AGAIN_S = 1.0
# What is in memory is answered in a fraction of this, and waiting so long does not hurt.
LEAST_DEADLINE_MS = 100


class Rate:
    """Moving average of a speed: what was moved, over the time it took. Both sums decay with each sample, so
    that a large transfer says more than a small one, and a new one more than an old one."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._seconds = 0.0
        self.samples = 0

    def observe(self, amount: float, seconds: float, samples: int = 1) -> None:
        """So much was moved in that time, in that many transfers together. Ignores what cannot be."""
        if samples < 1 or not 0 <= amount < math.inf or not 0 < seconds < math.inf:
            return
        decay = _DECAY**samples
        self._amount = self._amount * decay + amount
        self._seconds = self._seconds * decay + seconds
        self.samples += samples

    def restart(self) -> None:
        """The next sample is the average. How often it was measured is kept."""
        self._amount = self._seconds = 0.0

    @property
    def is_known(self) -> bool:
        """It may speak against something."""
        return self.samples >= MIN_SAMPLES and self._seconds > 0

    @property
    def per_second(self) -> float:
        """Zero while there is no sample."""
        return self._amount / self._seconds if self._seconds > 0 else 0.0

    def seconds(self, amount: float) -> float:
        """How long so much takes: infinite if nothing has come through, zero while there is no sample."""
        if self._seconds == 0:
            return 0.0
        return amount * self._seconds / self._amount if self._amount > 0 else math.inf


class Probes:
    """When to let through what is refused."""

    def __init__(self) -> None:
        self._next: float | None = None
        self._pause_s = PROBE_FIRST_S
        self._is_out = False
        self.count = 0

    def refuses(self, is_slow: bool, now: float) -> bool:
        """Whether to refuse now what is slow or not; False for one that is slow sends a probe."""
        if not is_slow:
            self._next, self._pause_s, self._is_out = None, PROBE_FIRST_S, False
            return False
        if self._next is None:
            self._next = now + self._pause_s
        if now < self._next:
            return True
        self._next = now + PROBE_AGAIN_S
        self._is_out = True
        self.count += 1
        return False

    def came_back(self, now: float) -> bool:
        """There is a measurement; whether it is a probe's. Others are of what was let through before."""
        if not self._is_out:
            return False
        self._is_out = False
        self._pause_s = min(2 * self._pause_s, PROBE_MOST_S)
        self._next = now + self._pause_s
        return True


class RestoreEstimate:
    """The three speeds and what they say about one page.

    `copy_bytes` of a page are copied by each rank, side by side; `read_bytes` are read from the slower tier,
    for all ranks together.
    """

    def __init__(self, *, page_tokens: int, copy_bytes: int, read_bytes: int) -> None:
        self._page_tokens = page_tokens
        self._copy_bytes = copy_bytes
        self._read_bytes = read_bytes
        self.prefill = Rate()  # tokens
        self.copy = Rate()  # bytes, by one rank
        self.read = Rate()  # bytes, of all queries that wait at once
        self.read_probes = Probes()
        self.copy_probes = Probes()

    # Measurements -----------------------------------------------------------------------------------------

    def observe_copies(self, num_bytes: float, seconds: float, now: float) -> None:
        """Restores copied so much from memory, each of them for a part of that time."""
        if num_bytes > 0 and seconds > 0:
            if self.copy_probes.came_back(now):
                self.copy.restart()
            self.copy.observe(num_bytes, seconds)

    def observe_reads(self, pages: int, seconds: float, queries: int, now: float) -> None:
        """So many queries got so many pages from the slower tier, and at least one of them waited for so
        long. No page at all is a measurement too."""
        if queries > 0 and seconds > 0:
            # What a probe finds is news. The average is what it was to check.
            if self.read_probes.came_back(now):
                self.read.restart()
            self.read.observe(pages * self._read_bytes, seconds, queries)

    # Answers ----------------------------------------------------------------------------------------------

    @property
    def copies_are_slow(self) -> bool:
        """Copying a page from memory takes longer than computing it."""
        return self.prefill.is_known and self.copy.is_known and self._copy_s > self._compute_s

    @property
    def reads_are_slow(self) -> bool:
        """Reading a page from the slower tier, and copying it, takes longer than computing it."""
        is_known = self.prefill.is_known and self.read.is_known
        return is_known and self.read.seconds(self._read_bytes) + self._copy_s > self._compute_s

    @property
    def _copy_s(self) -> float:
        return self.copy.seconds(self._copy_bytes) if self.copy.is_known else 0.0

    @property
    def _compute_s(self) -> float:
        return self.prefill.seconds(self._page_tokens)

    def may_read(self, now: float) -> bool:
        """Whether a request that is looked up now may have pages read for it: they are worth it, or it is a
        probe."""
        return not self.read_probes.refuses(self.reads_are_slow, now)

    def may_copy(self, now: float) -> bool:
        """Whether pages that are in memory may be restored now: they are worth it, or it is a probe."""
        return not self.copy_probes.refuses(self.copies_are_slow, now)

    def deadline_ms(self, pages: int, most_ms: int) -> int:
        """How long to wait for so many pages: not longer than computing them takes."""
        if not self.prefill.is_known:
            return most_ms
        compute_ms = min(self.prefill.seconds(pages * self._page_tokens) * 1000, most_ms)
        return min(most_ms, max(LEAST_DEADLINE_MS, math.ceil(compute_ms)))
