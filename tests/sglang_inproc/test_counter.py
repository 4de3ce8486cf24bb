"""The layer counter, on its own: who waits for a layer, and what becomes of one that will never come."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from orbitkv import _native as native
from orbitkv.sglang import counter as module
from orbitkv.sglang.counter import LayerCounter, LoadBatch, LoadFailedError

LAYERS = 4


class Host:
    """Memory of the host."""

    has_streams = False


class Cuda:
    """A device whose stream is number 7."""

    has_streams = True

    def stream(self) -> int:
        return 7


@dataclass
class Load:
    """A load whose layers land when they are waited for, unless `answers` say otherwise."""

    answers: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    is_over: bool = False
    waits: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)

    def wait_layer(self, region: int, timeout_ms: int) -> bool:
        self.waits.append(region)
        return bool(self.answers.pop(0)) if self.answers else True

    def order_layer(self, region: int, stream: int, timeout_ms: int) -> int:
        self.waits.append(region)
        self.streams.append(stream)
        return self.answers.pop(0) if self.answers else native.LAYER_ORDERED

    def poll(self) -> bool:
        return self.is_over

    def failed_blocks(self) -> list[int]:
        return self.failed


def counter(device: object, *loads: Load) -> tuple[LayerCounter, int]:
    made = LayerCounter(LAYERS, device, slice_ms=10)
    return made, made.add(LoadBatch(["r"], list(loads)))


@pytest.mark.parametrize("device", [Host(), Cuda()])
def test_each_layer_of_each_load_is_waited_for_once(device: object) -> None:
    """By its last region: keys and values are two."""
    loads = Load(), Load()
    made, index = counter(device, *loads)
    made.set_consumer(index)
    for layer in range(LAYERS):
        # For the keys, and again for the values.
        made.wait_until(layer)
        made.wait_until(layer)
    assert [load.waits for load in loads] == [[1, 3, 5, 7]] * 2
    assert [load.streams for load in loads] == [[7] * 4 if device.has_streams else []] * 2


def test_a_pass_without_loads_waits_for_nothing() -> None:
    load = Load()
    made, index = counter(Host(), load)
    made.wait_until(0)
    made.set_consumer(-1)
    made.wait_until(0)
    made.set_consumer(index)
    made.forget(index)
    made.wait_until(0)
    assert load.waits == []


@pytest.mark.parametrize(
    ("device", "slow"), [(Host(), 0), (Cuda(), native.LAYER_TIMED_OUT)], ids=["host", "cuda"]
)
def test_a_slow_layer_is_waited_for_again(device: object, slow: int) -> None:
    load = Load(answers=[slow, slow])
    made, index = counter(device, load)
    made.set_consumer(index)
    made.wait_until(2)
    assert load.waits == [5, 5, 5]


@pytest.mark.parametrize(
    ("device", "load"),
    [
        (Host(), Load(answers=[0], failed=[9], is_over=True)),
        (Cuda(), Load(answers=[native.LAYER_FAILED])),
    ],
    ids=["host", "cuda"],
)
def test_a_layer_that_never_comes_is_an_error_and_not_wrong_bytes(device: object, load: Load) -> None:
    made, index = counter(device, load)
    made.set_consumer(index)
    with pytest.raises(LoadFailedError, match="restart the engine"):
        made.wait_until(0)


def test_an_error_of_the_driver_ends_the_pass() -> None:
    """The stream is then not ordered: what it computes next would see other bytes."""

    class Lost(Load):
        def order_layer(self, region: int, stream: int, timeout_ms: int) -> int:
            raise native.OrbitKVError("cuStreamWaitEvent reports CUDA error 700")

    made, index = counter(Cuda(), Lost())
    made.set_consumer(index)
    with pytest.raises(LoadFailedError, match="restart the engine: cuStreamWaitEvent"):
        made.wait_until(0)


def test_a_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_LIMIT_S", 0.0)
    made, index = counter(Host(), Load(answers=[0] * 1000))
    made.set_consumer(index)
    with pytest.raises(LoadFailedError, match="has not ended"):
        made.wait_until(0)


def test_a_batch_has_ended_with_its_last_load() -> None:
    first, second = Load(is_over=True), Load()
    batch = LoadBatch(["a", "b"], [first, second])
    assert not batch.has_ended()
    second.is_over = True
    assert batch.has_ended()
    second.failed = [3]
    with pytest.raises(LoadFailedError, match="1 pages of requests"):
        batch.has_ended()
