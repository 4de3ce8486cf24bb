"""Prompts of random tokens: two seeds share no block."""

from __future__ import annotations

import random

BLOCK_TOKENS = 32
# Ordinary tokens of the tiny model: not its special ones.
FIRST_TOKEN, LAST_TOKEN = 10, 999
# Prompts that only fill memory have seeds no test uses.
FILLER_SEED = 1_000_000


def prompt(seed: int, tokens: int) -> list[int]:
    """`tokens` random tokens. A longer prompt of the same seed begins with the shorter one."""
    generator = random.Random(seed)
    return [generator.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(tokens)]


def restorable_tokens(tokens: int, block_tokens: int = BLOCK_TOKENS) -> int:
    """Most tokens of a prompt that can come from a cache: whole blocks, and never the last token."""
    return (tokens - 1) // block_tokens * block_tokens
