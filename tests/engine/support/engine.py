"""A vLLM engine inside the test's own process, stepped by the test."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.environment import assert_one_thread
from support.manager import Manager
from support.memory import KvMemory
from support.models import tiny_model
from support.prompts import BLOCK_TOKENS, FILLER_SEED, prompt
from support.results import Result
from support.wait import wait_until


@dataclass(frozen=True)
class EngineSettings:
    """How an engine is built. `connector` is `kv_connector_extra_config` without the socket."""

    model: Path = field(default_factory=tiny_model)
    blocks: int = 128
    block_tokens: int = BLOCK_TOKENS
    max_model_len: int = 2048
    max_num_seqs: int = 8
    prefix_caching: bool = True
    connector: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    # False where the manager is not there yet, or the cache is not meant to become active.
    wait_active: bool = True


class Engine:
    """One `LLM`. Without a manager it has no connector: the control."""

    def __init__(self, manager: Manager | None, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.manager = manager
        self.llm = build_llm(manager, self.settings)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        worker = self.llm.llm_engine.model_executor.driver_worker.worker
        self.kv = KvMemory(worker.model_runner.kv_caches)
        self._results: dict[str, Result] = {}
        self._internal_ids: dict[str, str] = {}
        self._fillers = 0
        if manager is not None and self.settings.wait_active:
            self.wait_active()

    def close(self) -> None:
        """Ends the engine, once; another may then be built in this process."""
        if not hasattr(self, "llm"):
            return
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.core, self.scheduler, self.kv
        gc.collect()

    # Requests -----------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        tokens: list[int],
        max_tokens: int = 8,
        *,
        salt: str | None = None,
        priority: int = 0,
        lora: Any = None,
        **sampling: Any,
    ) -> None:
        """Queues a greedy request that generates exactly `max_tokens`, with the adapter of a `LoRARequest` if
        one is given. A name is free again after its end."""
        from vllm import SamplingParams, TokensPrompt

        request = TokensPrompt(prompt_token_ids=tokens, **({"cache_salt": salt} if salt else {}))
        params = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False, **sampling
        )
        engine = self.llm.llm_engine
        self._internal_ids[name] = engine.add_request(
            name, request, params, priority=priority, lora_request=lora
        )

    def step(self) -> list[str]:
        """One step; names of the requests that it finished."""
        finished = []
        for output in self.llm.llm_engine.step():
            if output.finished:
                completion = output.outputs[0]
                self._results[output.request_id] = Result(
                    list(completion.token_ids), output.num_cached_tokens, completion.finish_reason
                )
                finished.append(output.request_id)
        return finished

    def step_until(self, look: Callable[[], Any], what: str, **wait: Any) -> Any:
        """Steps until `look` is true."""
        return wait_until(look, what, meanwhile=self.step, **wait)

    def unfinished(self, names: Iterable[str], steps: int) -> set[str]:
        """Those of the requests that have not ended after so many steps."""
        for _ in range(steps):
            if not set(names) - set(self._results):
                break
            self.step()
        return set(names) - set(self._results)

    def finish(self, names: Iterable[str]) -> dict[str, Result]:
        """Steps until these requests have ended; their results."""
        names = list(names)
        self.step_until(lambda: all(name in self._results for name in names), f"{names} finished")
        return {name: self._results.pop(name) for name in names}

    def generate(self, prompts: list[list[int]], max_tokens: int = 8, **options: Any) -> list[Result]:
        """All prompts at once; their results in order, after their saves have ended."""
        names = [f"generate-{index}" for index in range(len(prompts))]
        for name, tokens in zip(names, prompts, strict=True):
            self.add(name, tokens, max_tokens, **options)
        results = self.finish(names)
        self.settle()
        return [results[name] for name in names]

    def run(self, tokens: list[int], max_tokens: int = 8, **options: Any) -> Result:
        """One prompt alone."""
        return self.generate([tokens], max_tokens, **options)[0]

    def abort(self, name: str) -> None:
        """As when a client disconnects."""
        self.llm.llm_engine.abort_request([name])

    def request(self, name: str) -> Any:
        """The scheduler's request, or None after its end."""
        return self.scheduler.requests.get(self._internal_ids[name])

    def blocks_of(self, name: str) -> list[int]:
        """Ids of the blocks a request has."""
        return self.scheduler.kv_cache_manager.get_block_ids(self._internal_ids[name])[0]

    def generated(self, name: str) -> int:
        """Tokens that a request has generated so far."""
        return self.request(name).num_output_tokens

    # State --------------------------------------------------------------------------------------------------

    @property
    def free_blocks(self) -> int:
        """Blocks the engine could hand out."""
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def settle(self) -> None:
        """Steps an engine without requests, as its own loop does, until the connector has nothing left to
        push, and waits for the manager to have taken it in."""
        self.step_until(lambda: not self.scheduler.has_requests(), "the engine is idle")
        if self.manager is not None:
            self.manager.wait_saved()

    def reset(self) -> None:
        """Empties the engine's own prefix cache. Bytes stay in memory until they are overwritten."""
        assert self.llm.reset_prefix_cache(), "the engine refused to reset its prefix cache"

    def press_out(self) -> None:
        """Fills the whole block pool with other prompts, so that whatever it held is gone from memory."""
        self.reset()
        block_tokens = self.settings.block_tokens
        left = self.free_blocks
        longest = (self.settings.max_model_len - 1) // block_tokens
        prompts = []
        while left > 0:
            count = min(left, longest)
            # One token less than whole blocks: the generated one completes the last.
            prompts.append(prompt(FILLER_SEED + self._fillers, count * block_tokens - 1))
            self._fillers += 1
            left -= count
        self.generate(prompts, max_tokens=1)
        self.reset()

    def wait_active(self) -> None:
        """Waits until hits and saves are on: seen by the manager, and known to the engine."""
        manager = self.manager
        assert manager is not None
        wait_until(lambda: manager.active_instances() >= 1, f"the instance is active; log:\n{manager.log()}")
        client = scheduler_client(self)
        wait_until(lambda: client.active, f"the engine knows that it is active: {client.status}")


def scheduler_client(engine: Engine) -> Any:
    """The native client of the connector's scheduler side."""
    return engine.scheduler.connector._scheduler._client


def worker_client(engine: Engine) -> Any:
    """The native client of the connector's worker side."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker._client


def build_llm(manager: Manager | None, settings: EngineSettings) -> Any:
    """The `LLM` alone, where the environment puts its processes."""
    from vllm import LLM
    from vllm.config import KVTransferConfig

    assert_one_thread()
    options: dict[str, Any] = {"disable_log_stats": True}
    if manager is not None:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="OrbitKVConnector",
            kv_connector_module_path="orbitkv.vllm",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"socket": str(manager.socket), **settings.connector},
        )
    return LLM(
        model=str(settings.model),
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=settings.prefix_caching,
        block_size=settings.block_tokens,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_model_len,
        num_gpu_blocks_override=settings.blocks,
        **{**options, **settings.options},
    )


def build_engine(manager_directory: Path, settings: dict[str, Any]) -> Engine:
    """For `support.child.Child`: an engine on a running manager; its views of the manager work there too."""
    return Engine(Manager(manager_directory).attach(), EngineSettings(**settings))
