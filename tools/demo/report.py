"""What the demo says in the end: table, summary and verdict."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from demo.client import Answer
from demo.compare import Verdict
from demo.counters import Ahead
from demo.drain import Drain
from demo.rounds import Phase, Round


@dataclass
class Outcome:
    """Everything that was measured."""

    engine: str
    self_test: str
    cold: Round
    restored: Round
    restarted: Round
    again: Round
    # By name of the round; the cold one is what the others are compared with.
    verdicts: dict[str, Verdict]
    drains: list[Drain]
    # With reading ahead: the round that shows it, and what it did.
    ahead: tuple[Round, Ahead] | None = None

    @property
    def rounds(self) -> list[Round]:
        """In the order in which they were played."""
        ahead = [self.ahead[0]] if self.ahead else []
        return [self.cold, self.restored, *ahead, self.restarted, self.again]


def ttft_ms(answers: Sequence[Answer]) -> float | None:
    """Median time to the first token."""
    return statistics.median(answer.ttft_ms for answer in answers) if answers else None


def summary(outcome: Outcome) -> dict[str, Any]:
    """What `summary.json` holds."""
    cold = ttft_ms(outcome.cold.serial)
    restored = ttft_ms([answer for answer in outcome.restored.serial if answer.cached_tokens])
    counted = [played.counted for played in outcome.rounds]
    result = {
        "engine": outcome.engine,
        "outputs_identical": all(verdict.identical for verdict in outcome.verdicts.values()),
        "restored_tokens": sum(count.restored_tokens for count in counted),
        "ttft_ms": {"cold": rounded(cold), "restored": rounded(restored)},
        "tiers": {
            "ram": sum(count.ram_pages for count in counted),
            "miss": sum(count.missed_pages for count in counted),
        },
        "drained": all(drain.drained for drain in outcome.drains),
        "self_test": outcome.self_test,
    }
    if outcome.ahead:
        result["tiers"]["memory"] = sum(count.tier_pages for count in counted)
        result["prepared"] = asdict(outcome.ahead[1])
    return result


def rounded(value: float | None) -> float | None:
    """Milliseconds with two digits."""
    return None if value is None else round(value, 2)


def problems(outcome: Outcome) -> list[str]:
    """Why the demo fails; empty when it does not."""
    found = []
    if outcome.self_test != "passed":
        found.append(f"the self-test did not pass: {outcome.self_test}")
    if outcome.cold.counted.restored_tokens:
        found.append("the cold round was not cold: tokens were restored")
    ahead = [outcome.ahead[0]] if outcome.ahead else []
    for played in (outcome.restored, *ahead, outcome.again):
        found += missing_hits(played)
    if outcome.ahead and not (outcome.ahead[1].claims and outcome.ahead[1].restored_bytes):
        found.append(f"nothing that was read ahead was used: {outcome.ahead[1]}")
    if outcome.restarted.counted.external_hit_tokens or outcome.restarted.counted.ram_pages:
        found.append("pages were found in a manager that had just been started")
    for played in outcome.rounds[1:]:
        local = serial_phase(played).counted.local_tokens
        if local:
            found.append(
                f"{played.name}: the engine itself still held {local} tokens: it was not pressed out"
            )
    found += [f"{name}: outputs differ" for name, v in outcome.verdicts.items() if not v.identical]
    found += [str(drain) for drain in outcome.drains if not drain.drained]
    return found


def missing_hits(played: Round) -> list[str]:
    """Serial requests that should have been served from the cache and were not."""
    if played.counted.external_hit_tokens == 0 or played.counted.restored_tokens == 0:
        return [f"{played.name}: nothing was restored"]
    cold = [answer.request.name for answer in played.serial if not answer.cached_tokens]
    return [f"{played.name}: not restored: {', '.join(cold)}"] if cold else []


def serial_phase(played: Round) -> Phase:
    """The requests that were sent one at a time."""
    return next(phase for phase in played.phases if phase.concurrency == 1)


def table(outcome: Outcome) -> str:
    """One line a round and concurrency."""
    heads = ["round", "at once", "requests", "TTFT ms", "prompt tokens"]
    heads += ["computed", "engine's own", "restored", "restored bytes", "saved bytes", "outputs"]
    rows = [heads]
    for played in outcome.rounds:
        verdict = outcome.verdicts.get(played.name)
        rows += [row(played, phase, equality(phase, verdict)) for phase in played.phases]
    widths = [max(len(line[column]) for line in rows) for column in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in rows]
    # The first column is text.
    lines = [line[0].ljust(widths[0]) + text[widths[0] :] for line, text in zip(rows, lines, strict=True)]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def equality(phase: Phase, verdict: Verdict | None) -> str:
    """How the outputs of a phase compare with the cold round."""
    if verdict is None:
        return "reference"
    count = sum(answer.request.name in verdict.differing for answer in phase.answers)
    if count == 0:
        return "identical"
    return f"{count} differ by batch" if verdict.identical else f"{count} DIFFERENT"


def row(played: Round, phase: Phase, outputs: str) -> list[str]:
    """Cells of one phase."""
    counted = phase.counted
    median = ttft_ms(phase.answers)
    return [
        played.name,
        str(phase.concurrency),
        str(len(phase.answers)),
        "-" if median is None else f"{median:.1f}",
        f"{sum(answer.prompt_tokens for answer in phase.answers):,}",
        f"{counted.computed_tokens:,}",
        f"{counted.local_tokens:,}",
        f"{counted.restored_tokens:,}",
        human_bytes(counted.restored_pages * played.page_bytes),
        human_bytes(counted.saved_pages * played.page_bytes),
        outputs,
    ]


def human_bytes(count: int) -> str:
    """Mebibytes with one digit."""
    return f"{count / 2**20:.1f} MiB"
