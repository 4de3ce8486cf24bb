"""A vLLM engine as it runs by default: scheduler and worker in processes of their own."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from support.engine import FILLER_SEED, EngineSettings, Result, build_llm
from support.holds import Holds
from support.manager import Manager
from support.processes import descendants, parent_of
from support.prompts import prompt
from support.wait import wait_until

SWITCH = "VLLM_ENABLE_V1_MULTIPROCESSING"


class MultiprocessEngine:
    """One `LLM` whose scheduler and worker can only be reached as a user reaches them."""

    def __init__(self, manager: Manager, test_dir: Path, settings: EngineSettings) -> None:
        self.settings = settings
        self.manager = manager
        self._test_dir = test_dir
        self._fillers = 0
        before = os.environ[SWITCH]
        os.environ[SWITCH] = "1"
        try:
            self.llm = build_llm(manager, settings)
        finally:
            os.environ[SWITCH] = before
        wait_until(lambda: manager.active_instances() == 1, f"it is active; log:\n{manager.log()}")

    @cached_property
    def worker_holds(self) -> Holds:
        """Hold points of its one worker process."""
        return worker_holds(os.getpid(), self._test_dir)

    def close(self) -> None:
        """Ends its processes."""
        self.llm.llm_engine.engine_core.shutdown()

    def generate(self, prompts: list[list[int]], max_tokens: int = 8) -> list[Result]:
        """All prompts at once; their results in order, after their saves have ended."""
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate(
            [TokensPrompt(prompt_token_ids=tokens) for tokens in prompts], params, use_tqdm=False
        )
        self.manager.wait_saved()
        return [Result(list(output.outputs[0].token_ids), output.num_cached_tokens) for output in outputs]

    def press_out(self) -> None:
        """Empties the engine's own prefix cache and overwrites its memory with other prompts."""
        wait_until(self.llm.reset_prefix_cache, "the engine resets its prefix cache")
        tokens = self.settings.max_model_len - 1
        count = -(-self.settings.blocks * self.settings.block_tokens // tokens)
        first = FILLER_SEED + self._fillers
        self._fillers += count
        self.generate([prompt(first + index, tokens) for index in range(count)], max_tokens=1)
        wait_until(self.llm.reset_prefix_cache, "the engine resets its prefix cache")


def worker_holds(ancestor: int, test_dir: Path) -> Holds:
    """Hold points of the one worker process below `ancestor`. Its parent, the scheduler's process, has a
    client and hold points too."""
    have = {int(path.stem) for path in test_dir.glob("*.sock")}
    workers = [pid for pid in descendants(ancestor) if pid in have and parent_of(pid) in have - {ancestor}]
    assert len(workers) == 1, f"workers below {ancestor}: {workers}"
    return Holds(test_dir, workers[0])
