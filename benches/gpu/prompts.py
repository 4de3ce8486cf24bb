"""Prompts of random token ids: two seeds share no block."""

from __future__ import annotations

import random

# Ids that every shape has, without the lowest, which tokenizers keep for themselves.
FIRST_TOKEN, LAST_TOKEN = 100, 999
BLOCK_TOKENS = 64


def prompt(seed: int, tokens: int) -> list[int]:
    """`tokens` random ids. A longer prompt of the same seed begins with the shorter one."""
    generator = random.Random(seed)
    return generator.choices(range(FIRST_TOKEN, LAST_TOKEN + 1), k=tokens)


def restorable_tokens(tokens: int) -> int:
    """Most tokens of a prompt that can come from a cache: whole blocks, and never the last token."""
    return (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


class Seeds:
    """Seeds that no other prompt of the run has."""

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def new(self, tokens: int) -> list[int]:
        """A prompt that nobody has seen."""
        self._next += 1
        return prompt(self._next, tokens)
