"""The engine's lookups, as its scheduler makes them."""

from __future__ import annotations

import pytest
from support.engine import Engine


def count_lookups(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int | None]]:
    """Each lookup from now on: the request and the answer."""
    connector, lookups = engine.scheduler.connector, []
    original = connector.get_num_new_matched_tokens

    def match(request: object, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer = original(request, num_computed_tokens)
        lookups.append((request.request_id, answer[0]))
        return answer

    monkeypatch.setattr(connector, "get_num_new_matched_tokens", match)
    return lookups
