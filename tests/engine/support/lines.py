"""What the adapter logs in this process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def adapter_lines(level: int = logging.WARNING) -> Iterator[list[str]]:
    """The adapter's lines of at least that level, while the block lasts."""
    # The engine takes handlers away when it is imported, which this import does.
    from orbitkv.vllm.log import logger

    said: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler, before = Collect(level), logger.level
    logger.addHandler(handler)
    logger.setLevel(min(level, logger.getEffectiveLevel()))
    try:
        yield said
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
