"""Log lines of the adapter, beside SGLang's own."""

from __future__ import annotations

import logging

from orbitkv.engine.log import OnceLogger

logger = logging.getLogger("sglang.orbitkv")
_once = OnceLogger(logger)
say_once, warn_once = _once.say_once, _once.warn_once
