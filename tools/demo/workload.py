"""The requests: token-id prompts with prefixes of many lengths, alone, mixed and shared."""

from __future__ import annotations

import random
from dataclasses import dataclass

from demo.settings import ENGINE_TOKENS, MAX_MODEL_LEN, OUTPUT_TOKENS, PREFIX_TOKENS, SAMPLES_PER_LENGTH

# Ids of the tiny tokenizer below this are special.
FIRST_TOKEN, VOCABULARY = 8, 1024
# Prefixes that several requests share, and how many.
SHARED_PREFIX_TOKENS = (512, 1024, 1536)
SHARERS = 3
# A pressing prompt leaves room for its output.
PRESS_PROMPT_TOKENS = MAX_MODEL_LEN - OUTPUT_TOKENS - 8
# Pressing prompts hold this much more than the engine can: blocks in use are evicted last.
PRESS_FACTOR = 1.4


@dataclass(frozen=True)
class Request:
    """One prompt. `prefix_tokens` of it may be found again; the rest is its own."""

    name: str
    prompt: tuple[int, ...]
    prefix_tokens: int


def tokens(seed: str, count: int) -> tuple[int, ...]:
    """`count` random token ids; the same seed always gives the same."""
    chosen = random.Random(seed)
    return tuple(chosen.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count))


def suffix(name: str) -> tuple[int, ...]:
    """A request's own end: a length that is no multiple of a block, as in life."""
    return tokens(f"suffix {name}", 17 + random.Random(name).randrange(24))


def warm_up_requests() -> list[Request]:
    """A short and a long prompt: the first of a size pays for what the engine prepares lazily."""
    lengths = (min(PREFIX_TOKENS), max(PREFIX_TOKENS))
    return [Request(f"warm-up {count}", tokens(f"warm-up {count}", count), 0) for count in lengths]


def serial_requests() -> list[Request]:
    """Prompts with nothing in common, sent one at a time: these are timed by length."""
    requests = []
    for sample in range(SAMPLES_PER_LENGTH):
        for length in PREFIX_TOKENS:
            name = f"{length} tokens, {sample + 1}"
            requests.append(Request(name, tokens(name, length) + suffix(name), length))
    return requests


def concurrent_requests() -> list[Request]:
    """Prompts of mixed lengths, sent four at a time; most share their prefix with others."""
    requests = []
    for sharer in range(SHARERS):
        for length in SHARED_PREFIX_TOKENS:
            name = f"shared {length}, {sharer + 1}"
            requests.append(Request(name, tokens(f"shared {length}", length) + suffix(name), length))
        length = PREFIX_TOKENS[sharer]
        name = f"mixed {length}"
        requests.append(Request(name, tokens(name, length) + suffix(name), length))
    return requests


def pressing_requests(occasion: str) -> list[Request]:
    """New prompts that together do not fit the engine: what it held before is gone after them."""
    count = -(-int(ENGINE_TOKENS * PRESS_FACTOR) // PRESS_PROMPT_TOKENS)
    names = [f"press {occasion} {index}" for index in range(count)]
    return [Request(name, tokens(name, PRESS_PROMPT_TOKENS), 0) for name in names]
