"""Log lines of the adapter. They go through vLLM's logger, which formats only names under `vllm`."""

from __future__ import annotations

from vllm.logger import init_logger

from orbitkv.engine.log import OnceLogger

logger = init_logger("vllm.orbitkv")
once = OnceLogger(logger)
say_once, warn_once = once.say_once, once.warn_once
