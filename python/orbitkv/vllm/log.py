"""Log lines of the adapter. They go through vLLM's logger, which formats only names under `vllm`."""

from __future__ import annotations

import logging

from vllm.logger import init_logger

logger = init_logger("vllm.orbitkv")

# Lines said so far by `say_once`. Keys are literals of this package, so the set cannot grow with traffic.
_said: set[str] = set()


def say_once(key: str, level: int, line: str, *values: object) -> None:
    """Logs `line` the first time `key` is seen in this process; per-request conditions must not flood."""
    if key not in _said:
        _said.add(key)
        logger.log(level, line, *values)


def warn_once(key: str, line: str, *values: object) -> None:
    """`say_once` at WARNING."""
    say_once(key, logging.WARNING, line, *values)
