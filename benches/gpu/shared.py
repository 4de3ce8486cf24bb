"""How often a prefix is copied that several requests want at once: once is enough."""

from __future__ import annotations

from benches.gpu.prompts import BLOCK_TOKENS, restorable_tokens
from benches.gpu.run_context import Run
from benches.gpu.systems import System

PART = "shared-prefix"
TOKENS, REQUESTS, ROUNDS = 1024, 8, 3


def measure(run: Run, mode: str, system: System) -> None:
    """Rows of OrbitKV: eight requests of one prompt at once, after the engine's own cache was reset."""
    manager = system.manager
    assert manager is not None, "only OrbitKV says what it restored"
    tokens = run.tokens(TOKENS)
    prompt = run.seeds.new(tokens)
    system.engine.call("ask", prompt)
    system.wait_saved()
    page_bytes = BLOCK_TOKENS * run.settings().shape.kv_bytes_per_token()
    for number in range(ROUNDS):
        system.engine.call("reset")
        before = manager.status()["counters"]["restored_pages"]
        answers = system.engine.call("ask_all", [prompt] * REQUESTS, 1)["answers"]
        system.wait_saved()
        pages = manager.status()["counters"]["restored_pages"] - before
        values = {"requests": REQUESTS, "restored_bytes": pages * page_bytes}
        values["copies"] = round(pages * BLOCK_TOKENS / restorable_tokens(tokens), 2)
        values["least_cached"] = min(answer["cached"] for answer in answers)
        run.rows.add(PART, mode=mode, system=system.name, tokens=tokens, round=number, **values)
