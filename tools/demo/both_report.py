"""What the demo of both engines says in the end: table, summary and verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from demo.client import Answer
from demo.compare import Verdict
from demo.drain import Drain
from demo.report import human_bytes, outputs, rounded, text_table, ttft_ms
from demo.rounds import Round
from demo.settings import BLOCK_TOKENS

LEGEND = (
    "TTFT: computed, one request at a time; restored, while the other engine restores too; tokens of the\n"
    "prompts, restored; bytes restored, each page compared with its checksum; when the last request had its\n"
    "first token, from the beginning of both"
)


@dataclass(frozen=True)
class Share:
    """What one engine got."""

    engine: str
    self_test: str
    cold: Round
    restored: Round
    verdict: Verdict

    @property
    def answers(self) -> list[Answer]:
        """Of the round in which both restore."""
        return [answer for phase in self.restored.phases for answer in phase.answers]

    @property
    def restorable_tokens(self) -> int:
        """Whole pages of its prompts, without the one of the last token."""
        return sum((answer.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS for answer in self.answers)


@dataclass(frozen=True)
class Budget:
    """What queries of both engines owned together, as the manager counts it."""

    budget_bytes: int
    peak_bytes: int
    # Queries of the round that had to wait for others to give bytes back.
    waits: int

    @classmethod
    def read(cls, status: Mapping[str, Any], waits_before: int) -> Budget:
        """From `/status`; the peak is exact, and since the manager's start."""
        query = status["query"]
        waits = status["counters"]["budget_waits"] - waits_before
        return cls(query["budget_bytes"], query["peak_reserved_bytes"], waits)

    def __str__(self) -> str:
        return (
            f"query budget {human_bytes(self.budget_bytes)}: queries of both engines owned at most "
            f"{human_bytes(self.peak_bytes)} at once ({self.peak_bytes / self.budget_bytes:.0%}), "
            f"and {self.waits} waited for it"
        )


@dataclass(frozen=True)
class Outcome:
    """Everything that was measured."""

    shares: Sequence[Share]
    budget: Budget
    drains: Sequence[Drain]


def through_ms(outcome: Outcome, share: Share) -> float:
    """From the first request of either engine to this one's last first token."""
    every = [answer for each in outcome.shares for answer in each.answers]
    begun_s = min(answer.first_s - answer.ttft_ms / 1e3 for answer in every)
    return (max(answer.first_s for answer in share.answers) - begun_s) * 1e3


def summary(outcome: Outcome) -> dict[str, Any]:
    """What `summary.json` holds."""
    return {
        "engines": [share_summary(outcome, share) for share in outcome.shares],
        "query_budget": asdict(outcome.budget),
        "outputs_identical": all(share.verdict.identical for share in outcome.shares),
        "drained": all(drain.drained for drain in outcome.drains),
    }


def share_summary(outcome: Outcome, share: Share) -> dict[str, Any]:
    """One engine."""
    counted = share.restored.counted
    return {
        "engine": share.engine,
        "self_test": share.self_test,
        "requests": len(share.answers),
        "restored_tokens": counted.restored_tokens,
        "verified_bytes": counted.verified_bytes,
        "ttft_ms": {"cold": rounded(ttft_ms(share.cold.serial)), "restored": rounded(ttft_ms(share.answers))},
        "through_ms": rounded(through_ms(outcome, share)),
        "outputs_identical": share.verdict.identical,
    }


def problems(outcome: Outcome) -> list[str]:
    """Why the demo fails; empty when it does not."""
    found = [problem for share in outcome.shares for problem in share_problems(share)]
    budget = outcome.budget
    if budget.peak_bytes > budget.budget_bytes:
        found.append(f"queries owned {budget.peak_bytes} bytes at once, the budget is {budget.budget_bytes}")
    if not budget.waits:
        found.append("no query waited for budget: the engines did not have to share it")
    return found + [str(drain) for drain in outcome.drains if not drain.drained]


def share_problems(share: Share) -> list[str]:
    """What is wrong with one engine's part."""
    found = []
    counted, wanted = share.restored.counted, share.restorable_tokens
    if share.self_test != "passed":
        found.append(f"the self-test did not pass: {share.self_test}")
    if share.cold.counted.restored_tokens:
        found.append(f"{share.cold.counted.restored_tokens} tokens were restored in the cold round")
    if counted.restored_tokens != wanted:
        found.append(f"{counted.restored_tokens} of {wanted} tokens were restored")
    restored_bytes = counted.restored_tokens // BLOCK_TOKENS * share.restored.page_bytes
    if counted.verified_bytes != restored_bytes:
        found.append(
            f"it took {restored_bytes} bytes for restored, and {counted.verified_bytes} landed with the "
            "checksum they were saved with"
        )
    if counted.bad_pages:
        found.append(f"{counted.bad_pages} pages were unreadable or not what had been saved")
    if not share.verdict.identical:
        found.append("outputs differ")
    return [f"{share.engine}: {problem}" for problem in found]


def table(outcome: Outcome) -> str:
    """One line an engine, and one for what they shared."""
    heads = ["engine", "at once", "requests", "cold ms", "restored ms", "prompt", "restored", "verified"]
    rows = [[*heads, "through ms", "outputs"]]
    rows += [row(outcome, share) for share in outcome.shares]
    return "\n".join([*text_table(rows), "", LEGEND, "", str(outcome.budget)])


def row(outcome: Outcome, share: Share) -> list[str]:
    """Cells of one engine."""
    counted = share.restored.counted
    (phase,) = share.restored.phases
    return [
        share.engine,
        str(phase.concurrency),
        str(len(phase.answers)),
        f"{ttft_ms(share.cold.serial):.1f}",
        f"{ttft_ms(phase.answers):.1f}",
        f"{sum(answer.prompt_tokens for answer in phase.answers):,}",
        f"{counted.restored_tokens:,}",
        human_bytes(counted.verified_bytes),
        f"{through_ms(outcome, share):,.0f}",
        outputs(phase, share.verdict),
    ]
