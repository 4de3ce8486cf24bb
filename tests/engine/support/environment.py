"""What the engine reads from the environment, set before it is imported."""

from __future__ import annotations

import os

ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # More threads than idle cores make the CPU backend ten times slower.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Prompt log probabilities would compile a kernel with the C++ compiler first.
    "TORCHDYNAMO_DISABLE": "1",
    "NO_PROXY": "127.0.0.1",
    # Scheduler, worker and test share one process and one thread: a test steps the engine itself.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Tests hold copies back and read from tiers of any pace, and want what they ask for. By the clock of so
    # small a model such restores are not worth it: test_restore_or_recompute.py is about that alone.
    "ORBITKV_REFUSE_SLOW_RESTORES": "0",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
}


def set_engine_environment() -> None:
    """For this process and its children."""
    os.environ.update(ENGINE_ENVIRONMENT)


def assert_one_thread() -> None:
    """Outputs can be compared: see `tests/conftest.py`."""
    import torch

    threads = torch.get_num_threads()
    assert threads == 1, f"torch runs with {threads} threads, imported before OMP_NUM_THREADS=1"
