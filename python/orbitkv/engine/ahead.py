"""Which waiting requests have their pages read ahead, and how."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbitkv.engine.settings import Settings

# Also the manager's limit of preparations for one client.
WINDOW = 4


class Mode(enum.Enum):
    """What is done for a request that waits."""

    OFF = enum.auto()
    PREPARE = enum.auto()
    WARM_UP = enum.auto()


def choose_mode(settings: Settings, logger: logging.Logger, *, world_size: int) -> Mode:
    """What the switches ask for, or OFF with one line that says why not."""
    if not (settings.prepare_requests or settings.queue_warmup):
        return Mode.OFF
    if settings.prepare_requests and settings.queue_warmup:
        logger.warning(
            "OrbitKV: ORBITKV_PREPARE_REQUESTS and ORBITKV_QUEUE_WARMUP are both set; neither is used, the "
            "rest of the cache is. Set one of them."
        )
        return Mode.OFF
    if world_size > 1:
        logger.warning(
            "OrbitKV: requests are not read ahead, as ORBITKV_%s asks: the engine has %d ranks, and only 1 "
            "is supported. The rest of the cache is used.",
            "PREPARE_REQUESTS" if settings.prepare_requests else "QUEUE_WARMUP",
            world_size,
        )
        return Mode.OFF
    return Mode.PREPARE if settings.prepare_requests else Mode.WARM_UP
