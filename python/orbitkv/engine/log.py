"""Log lines that are said once."""

from __future__ import annotations

import logging


class OnceLogger:
    """Says each line of a condition once in a process; per-request conditions must not flood."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        # Keys are literals of this package, so the set cannot grow with traffic.
        self._said: set[str] = set()

    def say_once(self, key: str, level: int, line: str, *values: object) -> None:
        """Logs `line` the first time `key` is seen."""
        if key not in self._said:
            self._said.add(key)
            self._logger.log(level, line, *values)

    def warn_once(self, key: str, line: str, *values: object) -> None:
        """`say_once` at WARNING."""
        self.say_once(key, logging.WARNING, line, *values)
