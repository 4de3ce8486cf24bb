"""KV on a device with streams: what comes after what, and what the engine is told while copies run.

The device is pretended: its memory is the host's, and its streams are numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer import kv_transfer_state

TOKENS = list(range(100, 118))  # 4 full blocks of 4 tokens and 2 tokens more
LAYERS = 3


class PretendedDevice:
    """Each time it is asked, the engine is on another stream."""

    has_streams = True
    name = "cuda:0"
    asked = 0

    def __init__(self, device: Any) -> None:
        assert device.type == "cpu"

    def stream(self) -> int:
        type(self).asked += 1
        return type(self).asked

    def order(self) -> dict[str, int]:
        return {"stream": self.stream()}


@pytest.fixture
def make_device_engine(
    make_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    monkeypatch.setattr("orbitkv.vllm.worker.KVDevice", PretendedDevice)
    monkeypatch.setattr(PretendedDevice, "asked", 40)
    return make_engine


def request(mini: Any, name: str) -> Any:
    return mini.FakeRequest(name, list(TOKENS))


def begin_restore(
    engine: Any, mini: Any, manager: Any, name: str = "b"
) -> tuple[Any, list[int], list[bytes]]:
    """A request whose four pages are to be restored in the coming step, its blocks, and the pages."""
    saved = [] if manager.pages else engine.compute_and_save(request(mini, "seed"))
    manager.stream_calls.clear()
    engine.pool.free.reverse()
    b = engine.add(request(mini, name))
    tokens, _ = engine.match(b)
    assert tokens == 16
    return b, engine.allocate(b, 16), saved


def step(engine: Any, mini: Any, b: Any, table: list[int]) -> Any:
    return engine.step(mini.output(new=[(b, table, 16, 2)]), has_sync=True)


def test_saves_come_after_the_stream_that_is_current(
    make_device_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_device_engine()
    saved = engine.compute_and_save(request(mini, "a"))
    assert len(manager.pages) == len(saved) == 4
    assert [call for call, _ in manager.stream_calls] == ["save"] * len(manager.saves)
    streams = [stream for _, stream in manager.stream_calls]
    assert streams == list(range(41, 41 + len(streams))), "asked for at each save"


def test_layers_are_ordered_and_nothing_is_waited_for(
    make_device_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_device_engine(load_mode="sync")
    b, table, saved = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    step(engine, mini, b, table)
    calls = ["restore", *(f"layer {layer}" for layer in range(LAYERS))]
    assert [call for call, _ in manager.stream_calls] == calls
    load = manager.loads[-1]
    assert (load.waits, load.aborted, load.is_over) == (0, False, False)
    assert engine.invalid[-1] == set()
    manager.hold_loads = False
    engine.step()
    assert [engine.content(block) for block in table[:4]] == saved
    assert engine.invalid[-1] == set()
    assert engine.worker._worker._ordered == []


def test_a_page_that_is_found_to_be_wrong_is_told_while_others_are_on_their_way(
    make_device_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_device_engine(load_mode="sync")
    b, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    manager.fail_blocks = {table[2]}
    step(engine, mini, b, table)
    assert engine.invalid[-1] == {table[2]}
    assert not manager.loads[-1].is_over
    manager.hold_loads = False
    engine.step()
    assert engine.invalid[-1] == set(), "once"


@pytest.mark.parametrize("answer", ["LAYER_TIMED_OUT", "LAYER_FAILED"])
def test_a_layer_that_does_not_come_ends_its_load(
    make_device_engine: Any, mini: Any, manager: Any, native: Any, answer: str
) -> None:
    engine = make_device_engine(load_mode="sync")
    b, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    manager.layer_answer = getattr(native, answer)
    step(engine, mini, b, table)
    assert manager.loads[-1].aborted
    assert engine.invalid[-1] == set(table[:4])


def test_checks_that_do_not_end_are_not_believed(make_device_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_device_engine(load_mode="sync")
    b, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    manager.checks_end = False
    step(engine, mini, b, table)
    assert engine.invalid[-1] == set(table[:4])


def test_layers_the_engine_never_asked_for_are_not_trusted(
    make_device_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_device_engine(load_mode="sync")
    layers = engine.kv
    for turn, expected_to_fail in enumerate([True, False]):
        b, table, _ = begin_restore(engine, mini, manager, f"b{turn}")
        manager.hold_loads = True
        engine.kv = {}  # no wait_for_layer_load calls
        step(engine, mini, b, table)
        engine.kv = layers
        manager.hold_loads = False
        # From then on the stream comes after the whole load before the forward pass.
        assert bool(engine.invalid[-1]) == expected_to_fail


def test_a_whole_graph_comes_after_the_last_layer(make_device_engine: Any, mini: Any, manager: Any) -> None:
    from orbitkv.vllm.connector import calls_layers

    engine = make_device_engine(load_mode="sync")
    b, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    side, metadata = (
        engine.worker._worker,
        engine.connector.build_connector_meta(mini.output(new=[(b, table, 16, 2)])),
    )
    side.begin_step(metadata)
    side.start_loads(metadata, layers_are_called=calls_layers(SimpleNamespace(attn_metadata=None)))
    assert [call for call, _ in manager.stream_calls] == ["restore", f"layer {LAYERS - 1}"]
    side.end_step()
    assert (side.take_failed_blocks(), manager.loads[-1].waits) == (set(), 0)


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=SimpleNamespace(name="NONE")), True),
        (SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=SimpleNamespace(name="PIECEWISE")), True),
        (SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=SimpleNamespace(name="FULL")), False),
        (SimpleNamespace(attn_metadata=None, cudagraph_runtime_mode=SimpleNamespace(name="NONE")), False),
    ],
)
def test_which_forward_passes_ask_for_layers(context: Any, expected: bool) -> None:
    from orbitkv.vllm.connector import calls_layers

    assert calls_layers(context) is expected


def test_an_asynchronous_load_is_over_when_its_copy_is(
    make_device_engine: Any, mini: Any, manager: Any
) -> None:
    engine = make_device_engine(load_mode="async")
    _, table, saved = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    engine.step()
    assert (engine.received, manager.stream_calls) == ([], [("restore", PretendedDevice.asked)])
    manager.hold_loads = False
    engine.step()
    assert engine.received == ["b"]
    assert [engine.content(block) for block in table[:4]] == saved


def test_a_failed_wait_breaks_the_side_and_fails_its_loads(
    make_device_engine: Any, mini: Any, manager: Any, lines: list[str]
) -> None:
    engine = make_device_engine(load_mode="sync")
    b, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    manager.raise_in = {"order_layer"}
    step(engine, mini, b, table)
    assert engine.invalid[-1] >= set(table[:4])
    assert [line for line in lines if "worker side failed" in line]


def test_without_a_driver_the_engine_serves_on(
    make_device_engine: Any, mini: Any, manager: Any, lines: list[str]
) -> None:
    manager.no_driver = True
    engine = make_device_engine()
    (line,) = [line for line in lines if line.startswith("OrbitKV off")]
    assert "cuda:0: copy: the CUDA driver library" in line
    engine.compute_and_save(request(mini, "a"))
    assert manager.pages == {}


def test_the_start_says_how_is_copied_and_troubles_are_said_once(
    make_device_engine: Any, native: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native.WorkerClient, "method", "cuda:0: blocks are copied in batches")
    engine = make_device_engine()
    assert len([line for line in lines if "blocks are copied in batches; pool memory" in line]) == 1
    monkeypatch.setattr(native.WorkerClient, "trouble", "pool memory cannot be registered")
    for _ in range(3):
        engine.step()
    assert len([line for line in lines if "cannot be registered" in line]) == 1


def test_a_trouble_that_comes_later_is_said(
    make_device_engine: Any, native: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbitkv.vllm.worker.LOOK_S", 0.0)
    engine = make_device_engine()
    engine.step()
    assert not [line for line in lines if "is lost" in line]
    monkeypatch.setattr(native.WorkerClient, "trouble", "the copy device is lost")
    engine.step()
    assert len([line for line in lines if "is lost" in line]) == 1


@pytest.mark.parametrize("copies_end", [True, False])
def test_memory_is_registered_anew_when_the_old_is_at_rest(
    make_device_engine: Any, mini: Any, manager: Any, lines: list[str], copies_end: bool
) -> None:
    engine = make_device_engine(load_mode="async")
    _, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    engine.step()
    manager.hold_loads, manager.copies_end = False, copies_end
    first = engine.worker._worker._client
    engine.kv = mini.kv_tensors()
    engine.worker.register_kv_caches(engine.kv)
    assert manager.closed == ["worker"]
    assert bool([line for line in lines if "have not ended" in line]) is not copies_end
    assert (engine.worker._worker._client not in (None, first)) is copies_end
    engine.step()
    # What was on its way into the old memory is computed instead.
    assert (engine.received, engine.invalid[-1]) == (["b"], set(table[:4]))
    if copies_end:
        before = len(manager.saves)
        c = engine.add(mini.FakeRequest("c", list(range(200, 210))))
        assert engine.match(c) == (0, False)
        new = engine.allocate(c, 0)
        engine.step(mini.output(new=[(c, new, 0, 10)]))
        for _ in range(3):
            engine.step()
        assert len(manager.saves) > before, "saves go on from the new memory"
    manager.copies_end = True


def test_the_first_estimate_is_the_device_s() -> None:
    from orbitkv.engine.settings import Settings
    from orbitkv.vllm.transfer import TransferEstimate

    estimate = TransferEstimate(Settings(socket="/x"), page_bytes=1_000_000, on_device=True)
    estimate.begin_step({"decoding"})
    assert [estimate.is_async(pages) for pages in (80, 81)] == [False, True]  # 80 MB at 20 GB/s are 4 ms


def test_restores_are_timed_by_their_copies(make_device_engine: Any, mini: Any, manager: Any) -> None:
    engine = make_device_engine(load_mode="sync")
    b, table, _ = begin_restore(engine, mini, manager)
    manager.hold_loads = True
    report = step(engine, mini, b, table).kv_connector_worker_meta
    assert (report.loaded_bytes, report.load_seconds) == (0, 0.0), "not over yet"
    manager.hold_loads = False
    for expected in ((4 * 768, 1e-4), (0, 0.0)):
        manager.loads[-1].poll()
        report = engine.step().kv_connector_worker_meta
        assert (report.loaded_bytes, report.load_seconds) == expected


@pytest.fixture
def in_one_process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Makes an engine's worker the one of this process, as the engine does."""
    return lambda engine: monkeypatch.setattr(kv_transfer_state, "_KV_CONNECTOR_AGENT", engine.worker)


def scheduled(engine: Any, mini: Any, b: Any, table: list[int], **changes: Any) -> Any:
    """The step of a restore, as far as the scheduler."""
    output = mini.output(new=[(b, table, 16, 2)])
    for name, value in changes.items():
        setattr(output, name, value)
    return engine.connector.build_connector_meta(output)


def test_a_restore_begins_when_the_scheduler_has_decided_on_it(
    make_device_engine: Any, mini: Any, manager: Any, in_one_process: Callable[[Any], None]
) -> None:
    engine = make_device_engine(load_mode="sync")
    in_one_process(engine)
    b, table, saved = begin_restore(engine, mini, manager)
    step(engine, mini, b, table)
    calls = [call for call, _ in manager.stream_calls]
    assert calls == ["restore"], "once, and it has landed before a layer is asked for"
    assert [engine.content(block) for block in table[:4]] == saved

    manager.stream_calls.clear()
    engine.finish(b, table)
    c, other, _ = begin_restore(engine, mini, manager, "c")
    scheduled(engine, mini, c, other)
    assert [call for call, _ in manager.stream_calls] == ["restore"]


@pytest.mark.parametrize(
    "changes",
    [{"new_block_ids_to_zero": [1]}, {"kv_cache_block_copies": [object()]}],
    ids=["zeroed", "copied"],
)
def test_not_before_the_engine_has_written_to_blocks(
    make_device_engine: Any,
    mini: Any,
    manager: Any,
    in_one_process: Callable[[Any], None],
    changes: dict[str, Any],
) -> None:
    engine = make_device_engine(load_mode="sync")
    in_one_process(engine)
    b, table, _ = begin_restore(engine, mini, manager)
    scheduled(engine, mini, b, table, **changes)
    assert manager.stream_calls == []


def test_not_from_another_thread_or_for_another_engine(
    make_device_engine: Any, mini: Any, manager: Any, in_one_process: Callable[[Any], None]
) -> None:
    engine = make_device_engine(load_mode="sync")
    in_one_process(engine)
    b, table, _ = begin_restore(engine, mini, manager)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(scheduled, engine, mini, b, table).result()
    assert manager.stream_calls == []
    engine.finish(b, table)
    c, other, _ = begin_restore(engine, mini, manager, "c")
    engine.worker._engine_id = "another"
    scheduled(engine, mini, c, other)
    assert manager.stream_calls == []


def test_not_of_restores_between_steps(
    make_device_engine: Any, mini: Any, manager: Any, in_one_process: Callable[[Any], None]
) -> None:
    engine = make_device_engine(load_mode="async")
    in_one_process(engine)
    begin_restore(engine, mini, manager)
    assert len(engine.connector.build_connector_meta(mini.output()).loads) == 1
    assert manager.stream_calls == []
