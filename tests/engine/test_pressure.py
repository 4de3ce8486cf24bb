"""More requests than blocks, more pages than pool: preemption and eviction on both sides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.engine import Engine
from support.manager import Manager

Prompts = Callable[..., list[int]]
REQUESTS = 8
GENERATED = 120


@pytest.mark.parametrize("load_mode", ["sync", "async", "auto"])
def test_preemption_and_eviction_keep_tokens_equal(
    new_manager: Callable[..., Manager],
    new_engine: Callable[..., Engine],
    new_prompt: Prompts,
    load_mode: str,
) -> None:
    # The eight prompts alone have 76 pages of 64 KiB.
    manager = new_manager(pool_size="4mib", segment_size="1mib")
    engine = new_engine(manager, blocks=50, max_model_len=1024, connector={"load_mode": load_mode})
    prompts = [new_prompt(200 + 30 * index, index) for index in range(REQUESTS)]
    alone = [engine.run(tokens, GENERATED).tokens for tokens in prompts]
    engine.reset()

    preempted = count_preemptions(engine)
    for _ in range(3):
        results = engine.generate(prompts, GENERATED)
        assert [result.tokens for result in results] == alone
        engine.reset()
    assert len(preempted) > 0, "no pressure in the engine"
    counters = manager.counters()
    assert counters["evicted_pages"] > 0, "no pressure in the pool"
    assert counters["restored_pages"] > 0
    assert counters["bad_pages"] == 0
    manager.assert_drained()


def count_preemptions(engine: Engine) -> list[str]:
    """Ids of the requests preempted from now on."""
    preempted: list[str] = []
    original = engine.scheduler._preempt_request

    def preempt(request: object, *args: object, **options: object) -> object:
        preempted.append(request.request_id)
        return original(request, *args, **options)

    engine.scheduler._preempt_request = preempt
    return preempted
