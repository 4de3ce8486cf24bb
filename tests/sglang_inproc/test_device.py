"""The tree with KV on a (fake) CUDA device: copies come after the kernels that they must not meet, kernels
after the layers that they read, with the overlapped scheduler and without."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from fake_device import ILLEGAL_ADDRESS, DeviceError, DeviceTree, FakeDevice, Stream, driver_path
from harness import LAYERS, Request, prompt
from support.holds import COPY_RESTORE, CUDA_DRIVER, Holds
from support.manager import Manager
from support.wait import wait_until

from orbitkv.sglang import start
from orbitkv.sglang.counter import LayerCounter, LoadFailedError
from orbitkv.sglang.linker import OrbitKVLinker

Build = Callable[..., DeviceTree]
PROMPT, RESTORED = prompt(1, 320), 256
# Long enough for a copy that nothing holds back.
BRIEF_S = 0.05
SLOW_COPY_US = 2000


@pytest.fixture
def new_tree(manager: Manager, holds: Holds, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Builds a tree on a device of its own."""
    trees: list[DeviceTree] = []

    def build(*, overlap: bool) -> DeviceTree:
        holds.set(CUDA_DRIVER, driver_path())
        device = FakeDevice()
        monkeypatch.setattr(start, "KVDevice", lambda of: device)
        monkeypatch.setattr(torch.cuda, "current_stream", device.current_stream)
        trees.append(DeviceTree(manager, device, overlap=overlap))
        return trees[-1]

    yield build
    for tree in trees:
        tree.close()


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def tree(request: pytest.FixtureRequest, new_tree: Build) -> DeviceTree:
    return new_tree(overlap=request.param)


def store(tree: DeviceTree) -> None:
    """The prompt is computed, saved, and gone from the device."""
    tree.run(PROMPT)
    tree.device.finish()
    tree.settle()
    assert tree.linker.saves.counters["pages_saved"] == 5
    tree.flush()


def admitted(tree: DeviceTree) -> Request:
    request = tree.enqueue(PROMPT)
    tree.wait_start(request)
    assert tree.admit(request) == RESTORED
    return request


def finish(tree: DeviceTree, request: Request) -> None:
    tree.device.finish()
    tree.finish(request)
    tree.settle()


def read_last_layer(tree: DeviceTree, request: Request) -> None:
    """The part of a forward pass that a restore can end."""
    if request.consumer < 0:
        tree.begin_forward(request)
    tree.linker.layer_done_counter.set_consumer(request.consumer)
    tree.pool.get_key_buffer(LAYERS - 1)


def test_kernels_see_restored_layers(tree: DeviceTree) -> None:
    store(tree)
    tree.device.plan("copy_us", SLOW_COPY_US)
    request = admitted(tree)
    tree.begin_forward(request)
    tree.forward(request)
    finish(tree, request)
    assert tree.seen[request.rid] == [True] * LAYERS
    assert tree.is_right(request)
    stats = tree.device.stats()
    assert stats.plain_copies + stats.row_copies + stats.batch_calls > 0, "by way of the driver"
    assert stats.waits_without_record == 0
    tree.assert_drained()


def test_control_kernels_that_wait_for_no_layer_are_too_early(
    tree: DeviceTree, holds: Holds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LayerCounter, "_order", lambda *args: True)
    store(tree)
    request = admitted(tree)
    with holds.held(COPY_RESTORE):
        tree.begin_forward(request)
        tree.forward(request)
        tree.device.finish()
    finish(tree, request)
    assert tree.is_right(request), "it has landed in the end"
    assert tree.seen[request.rid] == [False] * LAYERS


def order_after(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> None:
    """The planted defect: copies come after this stream alone."""
    monkeypatch.setattr(OrbitKVLinker, "_order", lambda linker: {"stream": stream.cuda_stream})


def spares_a_reader(tree: DeviceTree, reader: Stream, *, is_held: bool) -> bool:
    """Whether a kernel that reads the pages before they are given to a restore sees what was there before."""
    store(tree)
    request = admitted(tree)
    read: list[torch.Tensor] = []
    gate = reader.hold()
    reader.run(lambda: read.append(tree.buffers(LAYERS - 1)[1][request.slots[:RESTORED]].clone()))
    tree.begin_forward(request)
    if is_held:
        time.sleep(BRIEF_S)
        assert tree.linker.num_completed_loads() == 0, "a kernel still reads there"
    else:
        wait_until(lambda: tree.linker.num_completed_loads() == 1, "it has landed too early")
    gate.set()
    tree.forward(request)
    finish(tree, request)
    assert tree.is_right(request)
    return bool((read[0] == -1.0).all())


@pytest.mark.parametrize("reader", ["forward", "schedule"])
def test_a_restore_comes_after_whoever_still_uses_its_pages(tree: DeviceTree, reader: str) -> None:
    """On either stream of the engine: what was launched before has its pages until it has run."""
    assert spares_a_reader(tree, getattr(tree.device, reader), is_held=True)


@pytest.mark.parametrize(("reader", "after"), [("forward", "schedule"), ("schedule", "forward")])
def test_control_a_restore_after_one_stream_alone_is_too_early(
    new_tree: Build, monkeypatch: pytest.MonkeyPatch, reader: str, after: str
) -> None:
    tree = new_tree(overlap=True)
    order_after(monkeypatch, getattr(tree.device, after))
    assert not spares_a_reader(tree, getattr(tree.device, reader), is_held=False)


def saves_what_is_computed(tree: DeviceTree, *, is_held: bool) -> bool:
    """Saves pages of a forward pass that has only been launched."""
    request = tree.enqueue(PROMPT)
    tree.wait_start(request)
    tree.admit(request)
    gate = tree.compute.hold()
    tree.begin_forward(request)
    tree.forward(request)
    tree.finish(request)
    tree.until(lambda: tree.linker.saves.counters["pages_saved"] == 5, "its copies have been ordered")
    if is_held:
        time.sleep(BRIEF_S)
        tree.step()
        assert tree.cache.linker.pending_offloads, "nothing is computed yet"
    else:
        tree.settle()
    gate.set()
    tree.device.finish()
    tree.settle()
    tree.flush()
    again = admitted(tree)
    tree.begin_forward(again)
    tree.forward(again)
    finish(tree, again)
    return all(tree.seen[again.rid])


def test_a_save_comes_after_the_kernels_that_compute_its_pages(tree: DeviceTree) -> None:
    assert saves_what_is_computed(tree, is_held=True)
    tree.assert_drained()


def test_control_a_save_after_another_stream_is_too_early(
    tree: DeviceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    order_after(monkeypatch, tree.device.idle)
    assert not saves_what_is_computed(tree, is_held=False)


def test_a_flush_waits_for_restores_that_are_queued(tree: DeviceTree) -> None:
    """When it returns nothing is written any more, and the pages may be anybody's."""
    store(tree)
    request = admitted(tree)
    gate = tree.compute.hold()
    # All of its copies are in the driver now.
    read_last_layer(tree, request)
    is_over: list[bool] = []
    opener = threading.Timer(BRIEF_S, lambda: (is_over.append(False), gate.set()))
    opener.start()
    tree.cache.reset()
    is_over.append(True)
    opener.join()
    assert is_over == [False, True]
    before = [buffer.clone() for layer in range(LAYERS) for buffer in tree.buffers(layer)]
    tree.device.finish()
    time.sleep(BRIEF_S)
    after = [buffer for layer in range(LAYERS) for buffer in tree.buffers(layer)]
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_a_restore_goes_on_when_the_manager_has_died(tree: DeviceTree) -> None:
    store(tree)
    request = admitted(tree)
    tree.manager.kill()
    wait_until(lambda: not tree.linker._worker.connected, "its end is seen")
    tree.begin_forward(request)
    tree.forward(request)
    tree.device.finish()
    assert tree.seen[request.rid] == [True] * LAYERS
    assert tree.is_right(request)


@pytest.mark.parametrize(
    ("when", "error"),
    [("before", DeviceError), ("as it begins", LoadFailedError), ("during", LoadFailedError)],
)
def test_a_lost_device_ends_the_engine_and_computes_on_nothing(
    tree: DeviceTree, when: str, error: type[Exception]
) -> None:
    store(tree)
    request = admitted(tree)
    gate = tree.compute.hold()
    if when == "during":
        tree.begin_forward(request)
    if when == "as it begins":
        # The engine's own event is the first, the mark behind which the copies come is the second.
        tree.device.plan("cuEventRecord", 2, ILLEGAL_ADDRESS)
    else:
        tree.device.plan("lose", 0, ILLEGAL_ADDRESS)
    with pytest.raises(error):
        read_last_layer(tree, request)
    gate.set()
