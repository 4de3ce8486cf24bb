"""CPU engines that schedule a step before they have seen the last one's output, as engines on a GPU do.

vLLM switches that off there, because nothing would overlap. What its scheduler and its model runner do is the
same; only streams and events are missing, and copies end where they begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest


class _Done:
    """A stream or an event on which everything has ended."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass


@contextmanager
def overlapped_scheduling() -> Iterator[None]:
    """Engines that are built within schedule so; to be left after their end."""
    import torch
    from vllm.platforms.cpu import CpuPlatform

    update = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, config: Any) -> None:
        update(cls, config)
        config.scheduler_config.async_scheduling = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuPlatform, "check_and_update_config", classmethod(check_and_update_config))
        for name in ("Event", "Stream"):
            patch.setattr(torch.cuda, name, _Done)
        patch.setattr(torch.cuda, "current_stream", lambda *_: _Done())
        patch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        yield
