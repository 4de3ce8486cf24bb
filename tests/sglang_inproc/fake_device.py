"""A CUDA device without a GPU: the stand-in for the driver that the native client is tested with. Its memory
is the host's, its streams are threads, and kernels are functions of a test."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from harness import LAYERS, Request, Tree, computed
from support.manager import Manager

DRIVER = "liborbitkv_fake_cuda.so"
# `CUDA_ERROR_ILLEGAL_ADDRESS`, after which a device is lost.
ILLEGAL_ADDRESS = 700
KERNEL_LIMIT_S = 30.0
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_ordinals = itertools.count()


class DeviceError(RuntimeError):
    """What torch raises for an error of the driver."""


class Stats(ctypes.Structure):
    """Counters of the fake, in its order."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "plain_copies",
            "row_copies",
            "batch_calls",
            "largest_batch",
            "launches",
            "listed_copies",
            "modules",
            "synchronous_copies",
            "registered_bytes",
            "largest_registration",
            "waits_without_record",
            "events",
            "streams",
            "spoiled_captures",
            "context_references",
            "allocations",
        )
    ]


def driver_path() -> Path:
    """Beside the commands of the test wheel."""
    command = shutil.which("orbitkv")
    assert command is not None, "the test wheel's bin is not on PATH"
    return Path(command).with_name(DRIVER)


class FakeDevice:
    """A device that no other test of the process has, and what the adapter and the engine ask of one."""

    has_streams = True

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(str(driver_path()))
        self._ordinal = next(_ordinals)
        self._kernels: list[Any] = []
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._ordinal)
        self.call("cuCtxSetCurrent", context)
        self.plan("any_memory")
        self.schedule, self.forward, self.idle = Stream(self), Stream(self), Stream(self)
        self._current = self.schedule
        # Errors of kernels, which nobody else would see.
        self.errors: list[BaseException] = []

    def call(self, name: str, *arguments: Any) -> None:
        """A call of the driver. Raises `DeviceError`."""
        if code := getattr(self._driver, name)(*arguments):
            raise DeviceError(f"{name} reports {code}")

    def plan(self, verb: str, first: int = 0, second: int = 0) -> None:
        """A method of the fake's handle (`crates/fake-cuda`)."""
        verbs = ctypes.c_char_p(verb.encode())
        self.call(
            "fakeCudaPlan",
            ctypes.c_size_t(self._ordinal),
            verbs,
            ctypes.c_uint64(first),
            ctypes.c_uint64(second),
        )

    def stats(self) -> Stats:
        stats = Stats()
        self.call("fakeCudaStats", ctypes.c_size_t(self._ordinal), ctypes.byref(stats))
        return stats

    def run(self, stream: Stream, body: Callable[[], None]) -> None:
        def kernel(_: Any) -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001 - the thread is not Python's
                self.errors.append(error)

        # Nobody else keeps it until it has run.
        self._kernels.append(_KERNEL(kernel))
        self.call("cuLaunchHostFunc", stream.handle, self._kernels[-1], None)

    def finish(self) -> None:
        """Waits for everything on the engine's streams."""
        for stream in (self.schedule, self.forward):
            self.call("cuStreamSynchronize", stream.handle)
        assert not self.errors, self.errors

    @contextmanager
    def current(self, stream: Stream) -> Iterator[None]:
        """As `torch.cuda.stream`."""
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    # What the adapter asks ----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"cuda:{self._ordinal}"

    def stream(self) -> int:
        return self._current.cuda_stream

    def current_stream(self, *args: Any) -> Stream:
        return self._current


class Stream:
    """As much of `torch.cuda.Stream` as the engine and the adapter use."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.handle = ctypes.c_void_p()
        device.call("cuStreamCreateWithPriority", ctypes.byref(self.handle), 1, 0)

    @property
    def cuda_stream(self) -> int:
        return self.handle.value

    def wait_stream(self, other: Stream) -> None:
        event = ctypes.c_void_p()
        self._device.call("cuEventCreate", ctypes.byref(event), 2)
        self._device.call("cuEventRecord", event, other.handle)
        self._device.call("cuStreamWaitEvent", self.handle, event, 0)

    def run(self, body: Callable[[], None]) -> None:
        """A kernel."""
        self._device.run(self, body)

    def hold(self) -> threading.Event:
        """What is launched from now on waits until the event is set."""
        gate = threading.Event()
        self.run(lambda: gate.wait(KERNEL_LIMIT_S))
        return gate


class DeviceTree(Tree):
    """A scheduler's tree whose KV is on the device: forward passes are launched, and nobody waits for them.
    Without `overlap` they run on the scheduler's own stream."""

    def __init__(self, manager: Manager, device: FakeDevice, *, overlap: bool) -> None:
        self.device = device
        self.overlap = overlap
        self.compute = device.forward if overlap else device.schedule
        # By request and layer, whether the kernel saw the bytes that were cached.
        self.seen: dict[str, list[bool]] = {}
        worker = SimpleNamespace(
            register_hicache_layer_transfer_counter=lambda counter: None,
            model_runner=SimpleNamespace(forward_stream=device.forward),
        )
        super().__init__(manager, {"verify_restore": "all"}, tp_worker=worker)

    def forward(self, request: Request) -> None:
        if self.overlap:
            self.compute.wait_stream(self.device.schedule)
        seen = self.seen.setdefault(request.rid, [])
        cached = request.held + request.restored
        with self.device.current(self.compute):
            self.linker.layer_done_counter.set_consumer(request.consumer)
            for layer in range(LAYERS):
                self.pool.get_key_buffer(layer)
                self.pool.get_value_buffer(layer)
                self.compute.run(lambda layer=layer: seen.append(self._attend(request, layer, cached)))

    def _attend(self, request: Request, layer: int, cached: int) -> bool:
        sees = True
        for buffer, content in zip(self.buffers(layer), computed(request, layer), strict=True):
            sees &= torch.equal(buffer[request.slots[:cached]], content[:cached])
            buffer[request.slots[cached : len(request.tokens)]] = content[cached:]
        return sees

    def flush(self) -> None:
        """The engine flushes when nothing runs."""
        self.device.finish()
        super().flush()

    def close(self) -> None:
        super().close()
        # From here on no byte moves, and the pool may go.
        self.device.plan("destroy")
