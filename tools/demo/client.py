"""Streamed completions over HTTP, as a user's client sends them."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from demo.settings import OUTPUT_TOKENS, REQUEST_S
from demo.workload import Request

MODEL_NAME = "tiny"


class RequestError(Exception):
    """A request got no whole answer."""


@dataclass(frozen=True)
class Answer:
    """What came back, and when its first token did."""

    request: Request
    ttft_ms: float
    tokens: tuple[int, ...]
    prompt_tokens: int
    # Prompt tokens that were not computed, wherever they came from.
    cached_tokens: int


class Client:
    """One engine's `/v1/completions`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port

    def complete(self, request: Request, salt: str | None = None) -> Answer:
        """Sends one request and reads its stream. With a `salt` nothing cached before can serve it."""
        body: dict[str, Any] = {
            "model": MODEL_NAME,
            "prompt": list(request.prompt),
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if salt is not None:
            body["cache_salt"] = salt
        connection = http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_S)
        try:
            begun = time.monotonic()
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != 200:
                raise RequestError(f"{request.name}: HTTP {response.status}: {response.read(500)!r}")
            return read_stream(request, response, begun)
        except (OSError, http.client.HTTPException) as error:
            raise RequestError(f"{request.name}: {error!r}") from error
        finally:
            connection.close()

    def complete_all(
        self, requests: list[Request], concurrency: int, salt: str | None = None
    ) -> list[Answer]:
        """Sends all of them, `concurrency` at a time, and returns the answers in the requests' order."""
        with ThreadPoolExecutor(max_workers=concurrency) as threads:
            return list(threads.map(lambda request: self.complete(request, salt), requests))


def read_stream(request: Request, lines: Iterable[bytes], begun: float) -> Answer:
    """Reads server-sent events to the end; `begun` is the monotonic time at which it was sent."""
    first: float | None = None
    found: list[int] = []
    usage: dict[str, Any] | None = None
    for line in lines:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise RequestError(f"{request.name}: {event['error']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            new = choice.get("token_ids") or []
            if new and first is None:
                first = time.monotonic()
            found += new
    if first is None or usage is None:
        raise RequestError(f"{request.name}: the stream ended after {len(found)} tokens without usage")
    if len(found) != OUTPUT_TOKENS:
        raise RequestError(f"{request.name}: {len(found)} tokens came, {OUTPUT_TOKENS} were asked for")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        request=request,
        ttft_ms=(first - begun) * 1e3,
        tokens=tuple(found),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=details.get("cached_tokens") or 0,
    )
