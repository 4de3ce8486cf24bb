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
from demo.rounds import Phase, Round, Source
from demo.settings import BLOCK_TOKENS

# Below the table.
LEGEND = (
    "tokens: of the prompts, computed, in the engine's own cache, restored; bytes restored, each page\n"
    "compared with its checksum; pages asked of OrbitKV, by where they were found"
)


@dataclass
class Outcome:
    """Everything that was measured."""

    engine: str
    self_test: str
    # In the order in which they were played; the first one is cold, and what the others are compared with.
    rounds: list[Round]
    # By name of the round.
    verdicts: dict[str, Verdict]
    drains: list[Drain]
    # How pages go to the SSD, as the manager says it.
    ssd_mode: str = ""
    # With reading ahead: what it did.
    ahead: Ahead | None = None

    @property
    def cold(self) -> Round:
        """The round that is compared with."""
        return self.rounds[0]

    def first(self, source: Source) -> Round:
        """The first round that was served from there."""
        return next(played for played in self.rounds if played.source is source)


def ttft_ms(answers: Sequence[Answer]) -> float | None:
    """Median time to the first token."""
    return statistics.median(answer.ttft_ms for answer in answers) if answers else None


def restored_ttft_ms(played: Round) -> float | None:
    """The same of the requests that were not computed from the beginning."""
    return ttft_ms([answer for answer in played.serial if answer.cached_tokens])


def summary(outcome: Outcome) -> dict[str, Any]:
    """What `summary.json` holds."""
    result = {
        "engine": outcome.engine,
        "outputs_identical": all(verdict.identical for verdict in outcome.verdicts.values()),
        "restored_tokens": sum(played.counted.restored_tokens for played in outcome.rounds),
        "ttft_ms": {
            "cold": rounded(ttft_ms(outcome.cold.serial)),
            "restored": rounded(restored_ttft_ms(outcome.first(Source.MEMORY))),
            "ssd": rounded(restored_ttft_ms(outcome.first(Source.SSD))),
        },
        "tiers": {
            tier: sum(tiers(played)[tier] for played in outcome.rounds) for tier in ("ram", "ssd", "miss")
        },
        "rounds": [round_summary(outcome, played) for played in outcome.rounds],
        "drained": all(drain.drained for drain in outcome.drains),
        "self_test": outcome.self_test,
        "ssd_mode": outcome.ssd_mode,
    }
    if outcome.ahead:
        result["prepared"] = asdict(outcome.ahead)
    return result


def round_summary(outcome: Outcome, played: Round) -> dict[str, Any]:
    """One round. `tiers` has the pages that were asked for by where they were found: they sum to
    `requested_pages`. Bytes are those of pages that landed in the engine with the checksum of their save."""
    verdict = outcome.verdicts.get(played.name)
    return {
        "name": played.name,
        "source": played.source.value,
        "requests": sum(len(phase.answers) for phase in played.phases),
        "requested_pages": played.counted.requested_pages,
        "tiers": tiers(played),
        "restored_tokens": played.counted.restored_tokens,
        "verified_bytes": played.counted.verified_bytes,
        "bad_pages": played.counted.bad_pages,
        "ttft_ms": rounded(ttft_ms(played.serial)),
        "outputs_identical": None if verdict is None else verdict.identical,
        "drained": played.drain.drained,
    }


def tiers(played: Round) -> dict[str, int]:
    """Pages that were asked of the manager, by where it found them."""
    counted = played.counted
    return {"ram": counted.ram_pages, "ssd": counted.ssd_pages, "miss": counted.missed_pages}


def rounded(value: float | None) -> float | None:
    """Milliseconds with two digits."""
    return None if value is None else round(value, 2)


def problems(outcome: Outcome) -> list[str]:
    """Why the demo fails; empty when it does not."""
    found = []
    if outcome.self_test != "passed":
        found.append(f"the self-test did not pass: {outcome.self_test}")
    for played in outcome.rounds:
        found += wrong_source(played) + wrong_counts(played)
    for played in outcome.rounds[1:]:
        local = serial_phase(played).counted.local_tokens
        if local:
            found.append(
                f"{played.name}: the engine itself still held {local} tokens: it was not pressed out"
            )
    if outcome.ahead and not (outcome.ahead.claims and outcome.ahead.restored_bytes):
        found.append(f"nothing that was read ahead was used: {outcome.ahead}")
    found += [f"{name}: outputs differ" for name, v in outcome.verdicts.items() if not v.identical]
    found += [str(drain) for drain in outcome.drains if not drain.drained]
    return found


def ahead_line(ahead: Ahead) -> str:
    """What was read ahead, and what of it was used."""
    share = ahead.restored_bytes / ahead.read_bytes if ahead.read_bytes else 0.0
    return (
        f"read ahead from the SSD: {human_bytes(ahead.read_bytes)} for requests that waited, "
        f"{human_bytes(ahead.restored_bytes)} of it used ({share:.0%}), by {ahead.claims} requests"
    )


def wrong_source(played: Round) -> list[str]:
    """What did not come from where it had to."""
    counted, alone = played.counted, serial_phase(played).counted
    if played.source is Source.NOTHING:
        held = counted.ram_pages + counted.ssd_pages
        if alone.ram_pages or alone.ssd_pages or alone.restored_tokens:
            return [f"{played.name}: {held} pages were found where there should be none"]
        return []
    found = missing_hits(played)
    if played.source is Source.MEMORY and not counted.ram_pages:
        found.append(f"{played.name}: nothing came from memory")
    if played.source is Source.SSD:
        if not counted.ssd_pages:
            found.append(f"{played.name}: nothing came from the SSD")
        if alone.ram_pages:
            found.append(f"{played.name}: {alone.ram_pages} pages were in memory, which should be empty")
    return found


def missing_hits(played: Round) -> list[str]:
    """Serial requests that should have been served from the cache and were not."""
    if played.counted.external_hit_tokens == 0 or played.counted.restored_tokens == 0:
        return [f"{played.name}: nothing was restored"]
    cold = [answer.request.name for answer in played.serial if not answer.cached_tokens]
    return [f"{played.name}: not restored: {', '.join(cold)}"] if cold else []


def wrong_counts(played: Round) -> list[str]:
    """Numbers of one round that do not fit together, and pages that were not what had been saved."""
    found = []
    counted = played.counted
    # With several at once, what the engine holds itself may grow between question and start of a request.
    alone = serial_phase(played)
    if alone.counted.requested_pages != alone.restorable_pages:
        found.append(
            f"{played.name}: the serial prompts have {alone.restorable_pages} pages to ask for, and "
            f"{alone.counted.requested_pages} were found or missed"
        )
    restored_bytes = counted.restored_tokens // BLOCK_TOKENS * played.page_bytes
    if counted.verified_bytes != restored_bytes:
        found.append(
            f"{played.name}: the engine took {restored_bytes} bytes for restored, and "
            f"{counted.verified_bytes} landed with the checksum they were saved with"
        )
    if counted.bad_pages:
        found.append(f"{played.name}: {counted.bad_pages} pages were unreadable or not what had been saved")
    return found


def serial_phase(played: Round) -> Phase:
    """The requests that were sent one at a time."""
    return next(phase for phase in played.phases if phase.concurrency == 1)


def table(outcome: Outcome) -> str:
    """One line a round and concurrency."""
    heads = ["round", "at once", "requests", "TTFT ms", "prompt", "computed", "engine's", "restored"]
    heads += ["verified", "memory", "SSD", "miss", "outputs"]
    rows = [heads]
    for played in outcome.rounds:
        verdict = outcome.verdicts.get(played.name)
        rows += [row(played, phase, outputs(phase, verdict)) for phase in played.phases]
    return "\n".join([*text_table(rows), "", LEGEND])


def text_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table with its heads in the first row; the first column is text, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in rows]
    lines = [line[0].ljust(widths[0]) + text[widths[0] :] for line, text in zip(rows, lines, strict=True)]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def outputs(phase: Phase, verdict: Verdict | None) -> str:
    """How the outputs of a phase compare with the cold round."""
    if verdict is None:
        return "reference"
    count = sum(answer.request.name in verdict.differing for answer in phase.answers)
    if count == 0:
        return "identical"
    return f"{count} differ by batch" if verdict.identical else f"{count} DIFFERENT"


def row(played: Round, phase: Phase, equality: str) -> list[str]:
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
        human_bytes(counted.verified_bytes),
        f"{counted.ram_pages:,}",
        f"{counted.ssd_pages:,}",
        f"{counted.missed_pages:,}",
        equality,
    ]


def human_bytes(count: int) -> str:
    """Mebibytes with one digit."""
    return f"{count / 2**20:.1f} MiB"
