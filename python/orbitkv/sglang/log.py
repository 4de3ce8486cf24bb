"""Log lines of the adapter, beside SGLang's own."""

from __future__ import annotations

import logging

from orbitkv.engine.log import OnceLogger

logger = logging.getLogger("sglang.orbitkv")
once = OnceLogger(logger)
say_once, warn_once = once.say_once, once.warn_once
