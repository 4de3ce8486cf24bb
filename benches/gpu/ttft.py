"""Time to the first token of one request alone: computed, found in the engine's own cache, or restored
after that cache was emptied; all systems side by side on one GPU, another one first in each round.

A restore counts only if as many prompt tokens came from a cache as can: whole blocks, without the last
token. With `suffix`, a tenth of the prompt is new each time. That restored bytes are right is shown
elsewhere: with weights that the dummy loader makes, the tokens that follow would be the same with any KV.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from benches.gpu.growth import grow_to
from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.run_context import Run, rotated
from benches.gpu.settings import GIB
from benches.gpu.systems import NATIVE, ORBITKV, System

PART = "ttft"
# With the start of four engines side by side.
ESTIMATES_S = {"compiled": 220, "eager": 150}
LENGTHS = (1024, 4096, 8192, 32768)
# All that is restored here, with new tokens and without.
POOL_BYTES = 16 * GIB
# Rounds that do not count.
WARM_UPS = 2
# Pages for which too much was under way are saved the next time.
PRIMING_TRIES = 12
# Of all rounds at one length, more than enough; a run that is short of time leaves lengths out, longest last.
LENGTH_S = {1024: 8, 4096: 12, 8192: 16, 32768: 60}


@dataclass(frozen=True)
class Plan:
    """How times are taken."""

    # The engine's method after which a prompt is not in its own memory any more.
    evict: str = "reset"
    # Of each system alike; one or two may not count.
    samples: int = 11
    cold_samples: int = 5
    suffix_samples: int = 7
    length_s: dict[int, int] = field(default_factory=lambda: LENGTH_S)


def measure(run: Run, mode: str, systems: list[System], plan: Plan | None = None) -> None:
    """Rows of running systems in `mode`, such as "compiled"."""
    plan = plan or Plan()
    for system in systems:
        system.engine.call("ask", run.seeds.new(run.tokens(4096)), 4, within_s=300)
    for system in (system for system in systems if system.name == ORBITKV):
        grown = grow_to(system, GIB // 4 if run.is_dry_run else POOL_BYTES)
        run.rows.add(PART, kind="pool", mode=mode, system=system.name, **grown)
    for length in run.lengths or LENGTHS:
        if not run.budget.allows(plan.length_s[length]):
            run.rows.add(PART, kind="missing", mode=mode, tokens=length, reason="no time left")
            continue
        _Length(run, mode, run.tokens(length), systems, plan).measure()


class _Length:
    """All rounds at one prompt length."""

    def __init__(self, run: Run, mode: str, tokens: int, systems: list[System], plan: Plan) -> None:
        self.run, self.mode, self.tokens, self.plan = run, mode, tokens, plan
        # Shorter than a block: nobody can have it cached.
        self.wake = run.seeds.new(BLOCK_TOKENS // 2)
        self.prompts: dict[str, list[int]] = {}
        self.systems = [system for system in systems if self._prime(system)]

    def measure(self) -> None:
        """Restores and hits, then with a suffix, then cold."""
        run = self.run
        for number in range(-WARM_UPS, self.plan.samples):
            for system in rotated(self.systems, number):
                self._restore_and_hit(system, number)
        for number in range(self.plan.suffix_samples):
            for system in rotated(self.systems, number):
                self._with_suffix(system, number)
        for number in range(self.plan.cold_samples):
            for system in rotated(self.systems, number):
                if system.name in (NATIVE, ORBITKV):
                    self._row(system, "cold", number, run.seeds.new(self.tokens), expected=0)
                    system.wait_saved()
        run.say(f"ttft {self.mode} {self.tokens}: done, {run.budget.left_s:.0f} s left")

    def _prime(self, system: System) -> bool:
        """Computes a prompt, saves it, and sees that all of it comes back. Of a system that does not give
        it back, this length is left out."""
        tokens = self.run.seeds.new(self.tokens)
        system.engine.call("ask", tokens, within_s=300)
        self.prompts[system.name] = tokens
        if system.name == NATIVE:
            return True
        cached = 0
        for _ in range(PRIMING_TRIES):
            system.wait_saved(patiently=True)
            self._evict(system)
            cached = _restored(system.engine.call("ask", tokens, within_s=300))
            if cached >= restorable_tokens(self.tokens):
                return True
        reason = f"{cached} of {restorable_tokens(self.tokens)} tokens of a saved prompt came back"
        self.run.missing(PART, system.name, f"{self.mode}, {self.tokens} tokens: {reason}")
        return False

    def _restore_and_hit(self, system: System, number: int) -> None:
        tokens = self.prompts[system.name]
        whole = restorable_tokens(self.tokens)
        if system.name == NATIVE:
            # Computed anew and at once found: its cache was pressed by what came between.
            if system.engine.call("ask", tokens)["cached"] < whole:
                system.engine.call("ask", tokens)
        else:
            self._evict(system)
            self._row(system, "restore", number, tokens, expected=whole)
        self._row(system, "hbm-hit", number, tokens, expected=whole)

    def _with_suffix(self, system: System, number: int) -> None:
        prompt = self.prompts[system.name]
        # The last block of the prompt is whole now, and was saved only if something followed it.
        least = restorable_tokens(self.tokens)

        def ask(kind: str) -> None:
            suffix = self.run.seeds.new(max(self.tokens // 10, 64))
            self._row(system, kind, number, prompt + suffix, expected=least)

        if system.name != NATIVE:
            self._evict(system)
            ask("restore+suffix")
            system.wait_saved()
        else:
            system.engine.call("ask", prompt)
        ask("hbm-hit+suffix")
        system.wait_saved()

    def _row(self, system: System, kind: str, number: int, tokens: list[int], expected: int) -> None:
        # Its processes have slept while the others had their turn: what is timed is a server at work.
        system.engine.call("ask", self.wake)
        answer = system.engine.call("ask", tokens, within_s=300)
        if number < 0:
            return
        values: dict[str, Any] = {"ms": round(answer["ms"], 3), "cached": answer["cached"]}
        values["whole"] = _is_whole(answer, kind, expected)
        self.run.rows.add(PART, kind=kind, round=number, asked=len(tokens), **values, **self._name(system))

    def _evict(self, system: System) -> None:
        system.engine.call(self.plan.evict, within_s=300)

    def _name(self, system: System) -> dict[str, Any]:
        return {"mode": self.mode, "system": system.name, "tokens": self.tokens}


def _restored(answer: dict[str, Any]) -> int:
    """Prompt tokens from behind the engine's own cache. An engine that does not tell them from its own is
    asked when its cache is empty."""
    return answer.get("restored", answer["cached"])


def _is_whole(answer: dict[str, Any], kind: str, expected: int) -> bool:
    """Whether all tokens came from where they should: `expected` of them from a cache, or none."""
    if not expected:
        return answer["cached"] == 0
    if kind.startswith("restore"):
        return _restored(answer) >= expected
    return answer["cached"] - answer.get("restored", 0) >= expected
