"""Streamed completions over HTTP, as a user's client sends them."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from demo.engine import Engine, Stream, Usage
from demo.settings import OUTPUT_TOKENS, REQUEST_S
from demo.workload import Request


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
    # When the first token came, in monotonic seconds.
    first_s: float = 0.0


class Client:
    """Streams from one engine."""

    def __init__(self, engine: Engine, host: str, port: int) -> None:
        self._engine, self._host, self._port = engine, host, port

    def complete(self, request: Request, salt: str | None = None) -> Answer:
        """Sends one request and reads its stream. With a `salt` nothing cached before can serve it."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=REQUEST_S)
        try:
            begun = time.monotonic()
            body = json.dumps(self._engine.body(request.prompt, salt))
            connection.request("POST", self._engine.path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise RequestError(f"{request.name}: HTTP {response.status}: {response.read(500)!r}")
            return read_stream(request, self._engine.stream(), response, begun)
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


def read_stream(request: Request, stream: Stream, lines: Iterable[bytes], begun: float) -> Answer:
    """Reads server-sent events to the end; `begun` is the monotonic time at which it was sent."""
    first: float | None = None
    found: list[int] = []
    usage: Usage | None = None
    for line in lines:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise RequestError(f"{request.name}: {event['error']}")
        usage = stream.usage(event) or usage
        new = stream.tokens(event)
        if new and first is None:
            first = time.monotonic()
        found += new
    if first is None or usage is None:
        raise RequestError(f"{request.name}: the stream ended after {len(found)} tokens without usage")
    if len(found) != OUTPUT_TOKENS:
        raise RequestError(f"{request.name}: {len(found)} tokens came, {OUTPUT_TOKENS} were asked for")
    return Answer(
        request=request,
        ttft_ms=(first - begun) * 1e3,
        tokens=tuple(found),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        first_s=first,
    )
