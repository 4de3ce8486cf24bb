"""A vLLM engine in the process of a `Child`: asked as a user of `LLM` asks, or stepped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benches.gpu.prompts import Seeds
from benches.gpu.weights import enliven

# Prompts that only fill memory have seeds that nobody else uses.
FILLER_SEED = 900_000_000
RESET_WITHIN_S = 20.0


@dataclass(frozen=True)
class Answer:
    """One finished request. `cached` counts prompt tokens that were not computed, wherever they came from;
    `begun` is in seconds of `time.monotonic`."""

    begun: float
    ms: float
    tokens: list[int]
    cached: int


class Engine:
    """One `LLM` with these options; `transfer` becomes its `kv_transfer_config`. Its core is in a process
    of its own unless `VLLM_ENABLE_V1_MULTIPROCESSING=0` stands in the environment."""

    def __init__(
        self, options: dict[str, Any], transfer: dict[str, Any] | None, weights_seed: int | None = None
    ) -> None:
        begun = time.perf_counter()
        from vllm import LLM
        from vllm.config import KVTransferConfig

        imported = time.perf_counter()
        if transfer is not None:
            options = {**options, "kv_transfer_config": KVTransferConfig(**transfer)}
        self.llm = LLM(**options)
        self.core = self.llm.llm_engine
        self._times = {"import_s": imported - begun, "start_s": time.perf_counter() - imported}
        self._weights_seed = weights_seed
        self._fill_weights()
        self._is_multiprocess = os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") != "0"
        self._asked = 0
        self._fillers = Seeds(FILLER_SEED)

    def _fill_weights(self) -> None:
        if self._weights_seed is not None:
            self.rpc(enliven, self._weights_seed)

    def describe(self) -> dict[str, Any]:
        """Seconds of its start, and what the engine chose by itself."""
        config = self.core.vllm_config
        return {
            **{name: round(value, 2) for name, value in self._times.items()},
            "pid": os.getpid(),
            "device": str(config.device_config.device_type),
            "multiprocess": self._is_multiprocess,
            "eager": bool(config.model_config.enforce_eager),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "gpu_blocks": config.cache_config.num_gpu_blocks,
            "kv_cache_dtype": str(config.cache_config.cache_dtype),
        }

    # Requests -----------------------------------------------------------------------------------------------

    def ask(self, tokens: list[int], max_tokens: int = 1) -> dict[str, Any]:
        """One request alone; `ms` until its last token, which is its first for `max_tokens=1`."""
        return asdict(self._generate([tokens], max_tokens)[0])

    def ask_all(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        """All at once: seconds until the last has ended, and the answers."""
        begun = time.perf_counter()
        answers = self._generate(prompts, max_tokens)
        return {"seconds": time.perf_counter() - begun, "answers": [asdict(answer) for answer in answers]}

    def _generate(self, prompts: list[list[int]], max_tokens: int) -> list[Answer]:
        requests = [{"prompt_token_ids": tokens} for tokens in prompts]
        begun = time.monotonic()
        outputs = self.llm.generate(requests, sampling(max_tokens), use_tqdm=False)
        ms = (time.monotonic() - begun) * 1000
        return [
            Answer(begun, ms, list(out.outputs[0].token_ids), out.num_cached_tokens or 0) for out in outputs
        ]

    def rpc(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `function(worker, *arguments)` in the engine's only worker. The environment must allow it:
        `EngineSettings.is_open`."""
        return self.llm.collective_rpc(function, args=arguments)[0]

    def add(self, tokens: list[int], max_tokens: int) -> str:
        """Queues a request for `step`; its name in the outputs."""
        self._asked += 1
        name = f"stepped-{self._asked}"
        self.core.add_request(name, {"prompt_token_ids": tokens}, sampling(max_tokens))
        return name

    def abort(self, names: list[str]) -> None:
        """As when clients disconnect."""
        self.core.abort_request(names)

    # State --------------------------------------------------------------------------------------------------

    def reset(self, reset_connector: bool = False) -> None:
        """Empties the engine's own prefix cache, and its connector's if asked to. It refuses while blocks
        are in use."""
        self.settle()
        deadline = time.monotonic() + RESET_WITHIN_S
        while not self.llm.reset_prefix_cache(reset_connector=reset_connector):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the engine refused for {RESET_WITHIN_S} s to reset its prefix cache")
            self.settle()
            time.sleep(0.005)

    def press_out(self) -> None:
        """Fills the whole KV memory with other prompts, so that whatever it held is gone from it."""
        self.reset()
        config = self.core.vllm_config
        left = config.cache_config.num_gpu_blocks
        # One token less than whole blocks: the generated one completes the last.
        longest = (config.model_config.max_model_len - 1) // config.cache_config.block_size
        while left > 0:
            blocks = min(left, longest)
            left -= blocks
            self._generate([self._fillers.new(blocks * config.cache_config.block_size - 1)], 1)
        self.reset()

    def settle(self) -> None:
        """Steps an engine in this process until its connector has nothing left to push, as a core in its own
        process does by itself."""
        if not self._is_multiprocess:
            scheduler = self.core.engine_core.engine_core.scheduler
            while scheduler.has_requests():
                self.core.step()

    def sleep(self, level: int) -> None:
        """KV memory is given back: with 1 weights go to host memory, with 2 they are dropped as well. Needs
        `EngineSettings.can_sleep`."""
        self.settle()
        self.llm.sleep(level=level)

    def wake_up(self) -> None:
        """All memory is back, and weights are those that they were."""
        self.llm.wake_up(tags=["weights"])
        self._fill_weights()
        self.llm.wake_up(tags=["kv_cache"])

    def close(self) -> None:
        """Ends its processes."""
        self.core.engine_core.shutdown()


def sampling(max_tokens: int) -> Any:
    """Greedy, exactly so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
