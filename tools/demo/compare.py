"""Whether outputs are equal, and if not, whose fault that is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from demo.counters import Counters
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
    """Compares a round with the cold one.

    What an engine computes depends a little on what else is in the batch, and a near tie between two
    tokens can then fall either way, with and without a cache. A difference is therefore held against the
    cache only if it shows with the request alone, against the engine's own cache.
    """
    names = differing(cold, other)
    if not names:
        return Verdict(True, [])
    say(f"{other.name}: {len(names)} outputs differ from the cold round: running controls")
    notes = [native_note(stage, cold, other, names)]
    control = serial_control(stage, [request for request in requests if request.name in names], other.name)
    identical, note = weigh(control)
    return Verdict(identical, [*notes, f"{other.name}: {note}"], names)


def native_note(stage: Stage, cold: Round, other: Round, names: list[str]) -> str:
    """Whether the engine alone, with the same requests at the same concurrency, differs as well."""
    reference = cold.tokens()
    changed = set()
    for phase in other.phases:
        requests = [answer.request for answer in phase.answers]
        again = stage.phase(requests, phase.concurrency, salt=f"native {other.name}")
        changed |= {a.request.name for a in again.answers if a.tokens != reference[a.request.name]}
    return (
        f"{other.name}: {len(names)} outputs differ from the cold round; of the same requests computed anew "
        f"at the same concurrency, {len(changed)} differ"
    )


@dataclass(frozen=True)
class Control:
    """The same requests alone, from the engine's own cache and restored from ours: the KV is one and the
    same, computed once, so the outputs must be equal."""

    own: Phase
    restored: Phase


def serial_control(stage: Stage, suspects: list[Request], occasion: str) -> Control:
    """Computes each suspect anew, asks again while the engine holds it, and again when it does not."""
    salt = f"control {occasion}"
    own = []
    for suspect in suspects:
        stage.phase([suspect], 1, salt)
        own.append(stage.phase([suspect], 1, salt))
    stage.press(f"for the control of {occasion}")
    counted = sum((phase.counted for phase in own), Counters.zero())
    held = Phase(1, [answer for phase in own for answer in phase.answers], counted)
    return Control(held, stage.phase(suspects, 1, salt))


def weigh(control: Control) -> tuple[bool, str]:
    """Whether the control acquits the cache, and a clause that says why or why not."""
    own, restored = control.own, control.restored
    if own.counted.local_tokens == 0 or own.counted.restored_tokens or restored.counted.local_tokens:
        return False, "the serial control did not use the engine's own cache as it should"
    if restored.counted.restored_tokens == 0:
        return False, "the serial control restored nothing, so it proves nothing"
    wrong = [
        a.request.name for a, b in zip(own.answers, restored.answers, strict=True) if a.tokens != b.tokens
    ]
    if wrong:
        return (
            False,
            f"alone, outputs from the engine's own cache and restored ones differ: {', '.join(wrong)}",
        )
    return (
        True,
        "alone, they are equal from the engine's own cache and restored: the batch made the difference",
    )
