"""Forgetting all that an engine has saved: its users ask for that, mostly because the model changes."""

from __future__ import annotations

import logging
from typing import Any

# The engine's scheduler stands still meanwhile.
RESET_WAIT_US = 2_000_000


def reset(client: Any, logger: logging.Logger) -> Any:
    """Has the manager forget every page of the namespace, on all tiers. None when it has confirmed that, else
    the reset that is open, with a line about it: the client repeats it until it is confirmed."""
    asked = client.reset()
    # Without a manager there is no use in waiting.
    if asked.wait(RESET_WAIT_US if client.connected else 0):
        return None
    logger.warning("OrbitKV: a reset is not confirmed, nothing is found until it is: %s", client.status)
    return asked
