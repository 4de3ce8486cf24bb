"""An engine whose model is split over two worker processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.engine import EngineSettings, Result
from support.holds import Holds
from support.manager import Manager
from support.multiprocess import MultiprocessEngine
from support.prompts import prompt
from support.wait import POLL_S, wait_until

RANKS = 2
OPTIONS = {
    "tensor_parallel_size": RANKS,
    "worker_extension_cls": "support.rank.RankExtension",
    "disable_log_stats": False,  # for the engine's metrics
}
# Of the request that only decodes, which no test's prompts use.
NEIGHBOUR_SEED = 3_000_000
MANY_TOKENS = 1500


class TensorParallelEngine(MultiprocessEngine):
    """Ranks are reached one by one: their hold points, memory and counters."""

    def __init__(self, manager: Manager, test_dir: Path, settings: EngineSettings) -> None:
        super().__init__(manager, test_dir, replace(settings, options={**settings.options, **OPTIONS}))
        self.pids: list[int] = self._ask("rank_pid")
        self.holds = [Holds(test_dir, pid) for pid in self.pids]
        self._results: dict[str, Result] = {}
        self._neighbours = 0

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Answers of all ranks, in order."""
        return self.llm.collective_rpc(method, args=arguments)

    def kill(self, rank: int) -> None:
        """SIGKILL to one worker; the engine does not survive it."""
        os.kill(self.pids[rank], signal.SIGKILL)

    # Requests -----------------------------------------------------------------------------------------------

    def add(self, name: str, tokens: list[int], max_tokens: int = 8) -> None:
        """Queues a request."""
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self._results.pop(name, None)
        self.llm.llm_engine.add_request(name, TokensPrompt(prompt_token_ids=tokens), params)

    def abort(self, *names: str) -> None:
        """Ends requests early."""
        self.llm.llm_engine.abort_request(list(names))

    def result(self, name: str) -> Result | None:
        """What a request has generated so far; None before its first token."""
        return self._results.get(name)

    def wait(self, look: Callable[[], Any], what: str) -> None:
        """Takes in what the engine generates until `look` is true."""
        wait_until(look, what, meanwhile=self._take_outputs)

    def finish(self, name: str) -> Result:
        """Waits for the end of a request."""
        self.wait(lambda: name in self._results and self._results[name].finish_reason, f"{name} finished")
        return self._results[name]

    def _take_outputs(self) -> None:
        if self.llm.llm_engine.engine_core.outputs_queue.empty():
            # A step would wait for output without a bound.
            time.sleep(POLL_S)
            return
        for output in self.llm.llm_engine.step():
            [completion] = output.outputs
            self._results[output.request_id] = Result(
                list(completion.token_ids), output.num_cached_tokens, completion.finish_reason
            )

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Another request decodes all the while, so that the engine has reason to load between steps."""
        self._neighbours += 1
        self.add("neighbour", prompt(NEIGHBOUR_SEED + self._neighbours, 31), MANY_TOKENS)
        self.wait(lambda: self.result("neighbour"), "the neighbour decodes")
        try:
            yield
        finally:
            self.abort("neighbour")

    # Memory -------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Empties the engine's own prefix cache. Bytes stay in memory until they are overwritten."""
        wait_until(self.llm.reset_prefix_cache, "the engine resets its prefix cache")

    def poison(self) -> None:
        """Empties the engine's own prefix cache and poisons the memory of all ranks. Nothing may run."""
        self.reset()
        self._ask("rank_poison")

    def payloads(self, tokens: list[int], pages: int) -> tuple[Result, list[list[bytes]]]:
        """Runs a prompt to its first token and then no further: that result, and for each rank the bytes of
        the prompt's first blocks."""
        self.add("watched", tokens, MANY_TOKENS)
        self.wait(lambda: self.result("watched"), "its first token")
        payloads = self._ask("rank_payloads", pages)
        self.abort("watched")
        result = self.result("watched")
        assert result is not None
        self.manager.wait_saved()
        return result, payloads

    def stats(self, counter: str) -> list[int]:
        """A counter of the native client, of each rank."""
        return [stats[counter] for stats in self._ask("rank_stats")]

    def counted(self, counter: str) -> int:
        """A counter of the connector in the engine's own metrics, as far as steps have brought it."""
        name = f"vllm:orbitkv_{counter}"
        [value] = [metric.value for metric in self.llm.get_metrics() if metric.name == name]
        return value
