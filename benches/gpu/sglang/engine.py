"""An SGLang engine in the process of a `Child`, asked as a user of `sglang.Engine` asks. Its scheduler is a
process of its own."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benches.gpu.prompts import BLOCK_TOKENS, Seeds
from benches.gpu.sglang.probe import METHOD

# Prompts that only fill memory have seeds that nobody else uses.
FILLER_SEED, PRESS_SEED = 900_000_000, 950_000_000
RESET_WITHIN_S = 20.0
WARM_UP_TOKENS = 256
# Together these are longer than the engine's memory.
PRESSING_PROMPTS, PRESSING_SHARE = 3, 0.375


@dataclass(frozen=True)
class Answer:
    """One finished request. `cached` counts prompt tokens that were not computed; `restored` those of them
    that the engine did not have in its own memory. `begun` is in seconds of `time.monotonic`."""

    begun: float
    ms: float
    tokens: list[int]
    cached: int
    restored: int


class Engine:
    """One `sglang.Engine` with these options. With `has_probe` its scheduler answers calls of `probe`."""

    def __init__(self, options: dict[str, Any], weights_seed: int | None, has_probe: bool) -> None:
        begun = time.perf_counter()
        import sglang

        imported = time.perf_counter()
        self._engine = sglang.Engine(**options)
        started = time.perf_counter()
        self._options = options
        self._has_probe = has_probe
        self._learnt: dict[int, list[int]] = {}
        if weights_seed is not None:
            self.probe("enliven", seed=weights_seed)
        self._fillers = Seeds(FILLER_SEED)
        length = int(options["max_total_tokens"] * PRESSING_SHARE) // BLOCK_TOKENS * BLOCK_TOKENS
        pressing = Seeds(PRESS_SEED)
        self._pressing = [pressing.new(length) for _ in range(PRESSING_PROMPTS)]
        filled = time.perf_counter()
        # The first request compiles kernels.
        self._generate([self._fillers.new(WARM_UP_TOKENS)], 2)
        self._times = {
            "import_s": imported - begun,
            "start_s": started - imported,
            "first_request_s": time.perf_counter() - filled,
        }

    def describe(self) -> dict[str, Any]:
        """Seconds of its start, and what the engine chose by itself."""
        info = self._engine.get_server_info()
        return {
            **{name: round(value, 2) for name, value in self._times.items()},
            "pid": os.getpid(),
            "device": str(info.get("device", "")),
            "kv_tokens": info.get("max_total_num_tokens"),
            "eager": self._options["disable_cuda_graph"],
            "overlap_schedule": not info.get("disable_overlap_schedule"),
            **{name: info.get(name) for name in ("hicache_mem_layout", "hicache_io_backend")},
            **(self.probe("describe") if self._has_probe else {}),
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
        sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
        # A list of one is a batch to SGLang, which takes another way.
        asked: Any = prompts if len(prompts) > 1 else prompts[0]
        begun = time.monotonic()
        outputs = self._engine.generate(input_ids=asked, sampling_params=sampling)
        ms = (time.monotonic() - begun) * 1000
        outputs = outputs if len(prompts) > 1 else [outputs]
        return [Answer(begun, ms, list(output["output_ids"]), *_cached(output)) for output in outputs]

    # State --------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Empties the engine's own cache, and HiCache's memory with it. It refuses while a request is not
        quite over."""
        deadline = time.monotonic() + RESET_WITHIN_S
        while not self._engine.flush_cache().success:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the engine refused for {RESET_WITHIN_S:.0f} s to flush its cache")
            time.sleep(0.005)

    def press(self) -> None:
        """Presses everything else out of the engine's memory, as other requests do. The prompts are the same
        each time, so a cache behind the engine gives them back; nothing behind it is lost."""
        for tokens in self._pressing:
            self._generate([tokens], 1)

    def press_out(self) -> None:
        """Overwrites the whole KV memory with new prompts, and empties the engine's own cache."""
        left = self._options["max_total_tokens"]
        while left > 0:
            tokens = min(left, self._options["context_length"] - BLOCK_TOKENS, left // 2 + BLOCK_TOKENS)
            left -= tokens
            self._generate([self._fillers.new(tokens)], 1)
        self.reset()

    def settle(self) -> None:
        """Nothing to do: the scheduler goes on by itself."""

    # Bytes --------------------------------------------------------------------------------------------------

    def probe(self, method: str, **arguments: Any) -> Any:
        """Calls a method of `probe.Probe` in the scheduler."""
        with tempfile.TemporaryDirectory(prefix="okv-probe-") as directory:
            file = Path(directory) / "call.json"
            file.write_text(json.dumps({"method": method, "arguments": arguments}))
            self._engine.collective_rpc(METHOD, path=str(file))
            return json.loads(file.read_text())

    def learn(self, tokens: list[int]) -> dict[str, int]:
        """Computes a prompt and keeps a copy of its whole pages on the device; its number, and how many they
        are."""
        cached = self._generate([tokens], 1)[0].cached
        kept = self.probe("keep", tokens=tokens)
        self._learnt[kept["number"]] = tokens
        return {"cached": cached, **kept}

    def gate(self, number: int) -> dict[str, Any]:
        """Restores a learnt prompt into overwritten memory, and compares. `control_blocks` as in `poison`."""
        self.reset()
        control = self.probe("poison", number=number)
        restored = self._generate([self._learnt[number]], 1)[0].restored
        seen = self.probe("compare", number=number)
        block_bytes = self.probe("describe")["block_bytes"]
        return {**control, **seen, "cached": restored, "bytes": restored // BLOCK_TOKENS * block_bytes}

    def close(self) -> None:
        """Ends its processes."""
        self._engine.shutdown()


def _cached(output: dict[str, Any]) -> tuple[int, int]:
    """Prompt tokens of an answer that were not computed, and those of them not from the device."""
    meta = output["meta_info"]
    cached = meta.get("cached_tokens", 0)
    return cached, cached - (meta.get("cached_tokens_details") or {}).get("device", 0)
