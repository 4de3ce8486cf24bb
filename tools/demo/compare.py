"""Whether outputs are equal, and if not, whose fault that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from demo.rounds import Phase, Round, Stage
from demo.workload import Request


@dataclass(frozen=True)
class Verdict:
    """Outcome of the comparison of a round with the cold one."""

    identical: bool
    notes: list[str]
    # Requests whose output was not that of the cold round, whatever the reason.
    differing: list[str] = field(default_factory=list)


def differing(cold: Round, other: Round) -> list[str]:
    """Names of the requests of `other` whose output is not that of the cold round."""
    reference = cold.tokens()
    return [name for name, tokens in other.tokens().items() if tokens != reference[name]]


def judge(
    stage: Stage, cold: Round, other: Round, requests: Sequence[Request], say: Callable[[str], None]
) -> Verdict:
    """Compares two rounds. Outputs of one model can depend on what else is in the batch, so a difference
    is only held against the cache if it shows with the request alone: restored, and computed anew."""
    names = differing(cold, other)
    if not names:
        return Verdict(True, [])
    say(f"{other.name}: {len(names)} outputs differ from the cold round: running controls without the cache")
    suspects = [request for request in requests if request.name in names]
    notes = [native_note(stage, cold, other, names)]
    stage.press(f"control of {other.name}")
    restored = stage.phase(suspects, 1)
    native = stage.phase(suspects, 1, salt=f"control {other.name}")
    return Verdict(*weigh(other.name, notes, restored, native), names)


def native_note(stage: Stage, cold: Round, other: Round, names: list[str]) -> str:
    """Whether the engine alone, with the same requests at the same concurrency, differs as well."""
    reference = cold.tokens()
    changed = set()
    for phase in other.phases:
        requests = [answer.request for answer in phase.answers]
        again = stage.phase(requests, phase.concurrency, salt=f"native {other.name}")
        changed |= {a.request.name for a in again.answers if a.tokens != reference[a.request.name]}
    return (
        f"{other.name}: {len(names)} outputs differ from the cold round; of the same requests without the "
        f"cache at the same concurrency, {len(changed)} differ"
    )


def weigh(name: str, notes: list[str], restored: Phase, native: Phase) -> tuple[bool, list[str]]:
    """The serial control: each suspect alone, restored and computed anew, must give the same tokens."""
    if restored.counted.restored_tokens == 0:
        return False, [*notes, f"{name}: the serial control restored nothing, so it proves nothing"]
    wrong = [
        a.request.name for a, b in zip(restored.answers, native.answers, strict=True) if a.tokens != b.tokens
    ]
    if wrong:
        return False, [*notes, f"{name}: alone, restored and computed outputs differ: {', '.join(wrong)}"]
    return True, [
        *notes,
        f"{name}: alone, restored and computed outputs are equal: the batch made the difference",
    ]
