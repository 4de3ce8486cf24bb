"""Page numbers of token slots: from the host's memory, and from a device without waiting for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orbitkv.sglang.layout import Blocks

SLOTS = torch.tensor([*range(192, 256), *range(64, 128)])


def test_numbers_are_those_of_whole_pages_in_order() -> None:
    blocks = Blocks(SLOTS, 64)
    assert blocks.are_known()
    assert blocks.numbers() == [3, 1]


class Device:
    """Stands in for a device, whose work is done when somebody waits for it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def slots(self, content: torch.Tensor) -> Any:
        return DeviceTensor(self, content)

    def event(self) -> Any:
        return DeviceEvent(self)

    def finish(self) -> None:
        for target, source in self.pending:
            target.copy_(source)
        self.pending.clear()


class DeviceTensor:
    """A tensor of it."""

    is_cuda = True

    def __init__(self, device: Device, content: torch.Tensor) -> None:
        self._device, self._content = device, content

    def __getitem__(self, index: slice) -> DeviceTensor:
        return DeviceTensor(self._device, self._content[index])

    def __floordiv__(self, divisor: int) -> DeviceTensor:
        return DeviceTensor(self._device, self._content // divisor)

    def to(self, where: str, *, non_blocking: bool = False) -> torch.Tensor:
        assert (where, non_blocking) == ("cpu", True)
        self._device.calls.append("copy")
        target = torch.full_like(self._content, -1)
        self._device.pending.append((target, self._content))
        return target


class DeviceEvent:
    """An event of it."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def record(self) -> None:
        self._device.calls.append("record")

    def query(self) -> bool:
        return not self._device.pending

    def synchronize(self) -> None:
        self._device.calls.append("wait")
        self._device.finish()


def test_numbers_on_a_device_are_copied_behind_what_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    blocks = Blocks(device.slots(SLOTS), 64)
    assert device.calls == ["copy", "record"]
    assert not blocks.are_known()
    assert blocks.numbers() == [3, 1], "not what is there before the copy has ended"
    assert device.calls == ["copy", "record", "wait"]
    assert blocks.are_known()
