"""A page that is found to be bad once its step has used it: the request is computed again, with equal tokens.

The control, such a page of which the engine is told nothing, is in `test_hits`: other tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from benches.gpu.systems import System
from support import GENERATED, Engines, ask, forget, hit, ready, wait_drained

Prompts = Callable[..., list[int]]
SHARED = 2048
RECOVERED = "computed again"


@pytest.fixture(scope="module")
def native(engines: Engines, failing: System) -> System:
    return engines.start(None, dtype=dtype(engines))


@pytest.fixture(scope="module")
def failing(engines: Engines) -> System:
    """Every restore lacks a block, and none is put between steps."""
    manager, connector = engines.new_manager(), {"load_mode": "sync", "refuse_slow_restores": False}
    return engines.begin(manager, module="failing", connector=connector, dtype=dtype(engines))


def dtype(engines: Engines) -> str:
    """What is computed again comes in other chunks. On a CPU nothing less gives equal tokens then."""
    return "float32" if engines.settings.is_dry_run else "bfloat16"


def recoveries(system: System) -> int:
    """How often its scheduler has said so."""
    return system.engine.log_tail(1_000_000).count(RECOVERED)


def test_one_request_is_computed_again(native: System, failing: System, new_prompt: Prompts) -> None:
    ready(failing)
    tokens = new_prompt(SHARED)
    expected = hit(native, tokens)
    assert hit(failing, tokens) == expected
    forget(failing)
    before = recoveries(failing)
    assert ask(failing, tokens)["tokens"] == expected
    assert recoveries(failing) == before + 1
    # Nothing bad is found by the next one.
    assert ask(failing, tokens)["tokens"] == expected
    wait_drained(failing.manager)


def test_requests_that_share_it_are_computed_again_beside_one_that_decodes(
    native: System, failing: System, new_prompt: Prompts
) -> None:
    ready(failing)
    shared, alone = new_prompt(SHARED), new_prompt(500, 9)
    prompts = [shared + new_prompt(200, 1 + index) for index in range(4)]
    expected = [hit(native, tokens) for tokens in prompts]
    expected_alone = hit(native, alone)
    for tokens in prompts:
        ask(failing, tokens)
    forget(failing)
    before = recoveries(failing)
    answers = failing.engine.call("ask_all", [alone, *prompts], GENERATED, within_s=300)["answers"]
    assert [answer["tokens"] for answer in answers] == [expected_alone, *expected]
    assert recoveries(failing) > before
    assert [ask(failing, tokens)["tokens"] for tokens in prompts] == expected
    wait_drained(failing.manager)
