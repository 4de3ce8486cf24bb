"""`_native.pyi` says what the module has: names, signatures, values, and errors for bad arguments."""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orbitkv import _native as native

STUB = Path(importlib.util.find_spec("orbitkv").origin).parent / "_native.pyi"
if not STUB.exists():
    STUB = Path(__file__).resolve().parents[2] / "python" / "orbitkv" / "_native.pyi"
TREE = ast.parse(STUB.read_text())
Function = ast.FunctionDef


def declared(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What a module or class body of the stub declares, by name."""
    names: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            names[ast.unparse(node.target)] = node
    return names


def public(value: Any) -> set[str]:
    """Names of a module or class that do not come from Python itself."""
    return {name for name in vars(value) if not name.startswith("_")}


CLASSES = {name: node for name, node in declared(TREE.body).items() if isinstance(node, ast.ClassDef)}


def test_the_module_has_the_declared_names_and_no_other() -> None:
    names = set(declared(TREE.body))
    assert {name for name in names if not name.startswith("__")} == public(native)
    assert native.__version__
    assert "__version__" in names


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_each_class_has_the_declared_members_and_no_other(name: str) -> None:
    members = declared(CLASSES[name].body)
    assert {member for member in members if member != "__init__"} == public(getattr(native, name))
    for member, node in members.items():
        is_property = any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)
        assert is_property == inspect.isdatadescriptor(getattr(getattr(native, name), member)), member


def parameters_of_stub(function: Function) -> list[tuple[str, bool, bool]]:
    """(name, only by keyword, has a default) for every parameter but self."""
    arguments = function.args
    positional = [argument.arg for argument in arguments.args if argument.arg != "self"]
    required = len(positional) - len(arguments.defaults)
    rows = [(name, False, index >= required) for index, name in enumerate(positional)]
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return rows + [(argument.arg, True, default is not None) for argument, default in pairs]


def parameters_of_module(function: Callable[..., Any]) -> list[tuple[str, bool, bool]]:
    parameters = inspect.signature(function).parameters.values()
    return [
        (p.name, p.kind is p.KEYWORD_ONLY, p.default is not p.empty) for p in parameters if p.name != "self"
    ]


def signatures() -> dict[str, tuple[Function, Callable[..., Any]]]:
    """Every function of the stub with its counterpart; a class is its constructor."""
    found: dict[str, tuple[Function, Callable[..., Any]]] = {}
    for name, node in declared(TREE.body).items():
        if isinstance(node, Function):
            found[name] = (node, getattr(native, name))
    for name, node in CLASSES.items():
        for member, function in declared(node.body).items():
            if not isinstance(function, Function) or function.decorator_list:
                continue
            owner = getattr(native, name)
            found[f"{name}.{member}"] = (
                function,
                owner if member == "__init__" else getattr(owner, member),
            )
    return found


@pytest.mark.parametrize("name", sorted(signatures()))
def test_signatures_are_as_declared(name: str) -> None:
    stub, function = signatures()[name]
    assert parameters_of_stub(stub) == parameters_of_module(function)


def test_states_and_grants_are_distinct() -> None:
    assert len({native.PENDING, native.READY, native.MISS, native.PREPARED}) == 4
    grants = {native.GRANT_SLOTS, native.GRANT_EXISTS, native.GRANT_BUSY, native.GRANT_REFUSED}
    assert len(grants) == 4


def test_hashes_are_padded_at_the_end() -> None:
    blob = native.pad_hashes([b"\x01", b"\x02" * 32])
    assert blob == b"\x01" + bytes(31) + b"\x02" * 32
    assert native.pad_hashes([]) == b""
    with pytest.raises(native.OrbitKVError, match="hash 1 has 33 bytes"):
        native.pad_hashes([b"\x01", bytes(33)])
    with pytest.raises(native.OrbitKVError, match="hash 0 has 0 bytes"):
        native.pad_hashes([b""])


def test_blake3() -> None:
    # The first test vector of BLAKE3: no input.
    assert native.blake3_hex(b"") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_gather_and_scatter_follow_the_strides() -> None:
    stride, size, blocks = 64, 48, 3
    memory = ctypes.create_string_buffer(bytes(range(192)) * 2, 2 * stride * blocks)
    base = ctypes.addressof(memory)
    layout = native.Layout([(base + layer * stride * blocks, stride, size, blocks) for layer in range(2)])
    assert (layout.page_bytes, layout.num_layers) == (2 * size, 2)
    expected = memory.raw[stride : stride + size] + memory.raw[4 * stride : 4 * stride + size]
    assert native.gather_block(layout, 1) == expected
    before = memory.raw
    native.scatter_block(layout, 2, expected)
    assert native.gather_block(layout, 2) == expected
    changed = [at for at, (a, b) in enumerate(zip(before, memory.raw, strict=True)) if a != b]
    inside = set(range(2 * stride, 2 * stride + size)) | set(range(5 * stride, 5 * stride + size))
    assert set(changed) <= inside
    assert changed
    with pytest.raises(native.OrbitKVError, match="block 3"):
        native.gather_block(layout, 3)
    with pytest.raises(native.OrbitKVError, match="payload is 95 bytes"):
        native.scatter_block(layout, 0, expected[1:])


@pytest.mark.parametrize(
    ("regions", "text"),
    [([], "0 regions"), ([(0, 1, 1, 1)], "base is zero"), ([(4096, 8, 16, 2)], "overlap")],
)
def test_a_layout_that_cannot_be_is_refused(regions: list[tuple[int, int, int, int]], text: str) -> None:
    with pytest.raises(native.OrbitKVError, match=text):
        native.Layout(regions)


def registration(**changes: Any) -> native.Registration:
    values: dict[str, Any] = {
        "socket": "/nonexistent/m.sock",
        "engine": "test",
        "engine_version": "1",
        "model": "m",
        "instance": "a" * 32,
        "namespace": "b" * 64,
        "world_size": 1,
        "groups": [
            {"group": 0, "page_bytes": 96, "block_tokens": 16, "shard_count": 1, "rule": "prefix"},
        ],
    }
    return native.Registration(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"world_size": -1}, "world_size is -1"),
        ({"world_size": 70_000}, "world_size is 70000"),
        ({"instance": "x"}, "instance is"),
        ({"namespace": "b"}, "namespace is"),
        ({"socket": "x" * 200}, "socket is"),
        ({"groups": []}, "groups is 0"),
        ({"groups": [{"group": 0}]}, "lacks the key"),
        ({"groups": [{"colour": 0}]}, "unknown key colour"),
    ],
)
def test_a_registration_that_cannot_be_names_the_value(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(native.OrbitKVError, match=text):
        registration(**changes)


def test_without_a_manager_everything_is_a_miss_and_nothing_waits() -> None:
    client = native.SchedulerClient(registration())
    hashes = native.pad_hashes([hashlib.sha256(b"x").digest()])
    query = client.query(hashes, deadline_ms=60_000)
    assert (query.poll(), query.pages, query.miss_reason) == (native.MISS, 0, "disconnected")
    with pytest.raises(native.OrbitKVError, match="disconnected"):
        query.restore(0, 1)
    preparation = client.prepare_prefix(hashes)
    state = (preparation.poll(), preparation.pages, preparation.miss_reason)
    assert state == (native.MISS, 0, "disconnected")
    assert preparation.claim(deadline_ms=60_000).miss_reason == "disconnected"
    with pytest.raises(native.OrbitKVError, match="claimed before"):
        preparation.claim()
    assert client.warm_up(hashes) is False
    reservation = client.reserve(hashes, parent=None, first_depth=0)
    assert (reservation.poll(), reservation.statuses()) == (True, [native.GRANT_REFUSED])
    reset = client.reset()
    assert not reset.wait(1_000)
    assert (client.active, client.connected, client.boot) == (False, False, "")
    with pytest.raises(native.OrbitKVError, match="multiple of 32"):
        client.query(hashes[1:])
    with pytest.raises(native.OrbitKVError, match="group is 7"):
        client.query(hashes, group=7)
    with pytest.raises(native.OrbitKVError, match="deadline_ms is -1"):
        client.query(hashes, deadline_ms=-1)
    with pytest.raises(native.OrbitKVError, match="multiple of 32"):
        client.prepare_prefix(hashes[1:])
    with pytest.raises(native.OrbitKVError, match="group is 7"):
        client.prepare_prefix(hashes, group=7)
    with pytest.raises(native.OrbitKVError, match="group is 7"):
        client.warm_up(hashes, group=7)
    with pytest.raises(native.OrbitKVError, match="deadline_ms is -1"):
        client.prepare_prefix(hashes).claim(deadline_ms=-1)
    client.close()
    client.close()


def test_a_worker_refuses_what_cannot_be() -> None:
    memory = ctypes.create_string_buffer(64 * 4)
    layout = native.Layout([(ctypes.addressof(memory), 64, 64, 4)])
    page = native.Layout([(ctypes.addressof(memory), 96, 96, 2)])
    with pytest.raises(native.OrbitKVError, match="layout is a page of 64 bytes"):
        native.WorkerClient(registration(), rank=0, layout=layout, scratch=layout, layout_probe_passed=True)
    options: dict[str, Any] = {"layout": page, "scratch": page, "layout_probe_passed": True}
    with pytest.raises(native.OrbitKVError, match="rank is 1"):
        native.WorkerClient(registration(), rank=1, **options)
    with pytest.raises(native.OrbitKVError, match="verify_restore"):
        native.WorkerClient(registration(), rank=0, verify_restore="often", **options)
    with pytest.raises(native.OrbitKVError, match="0 copy threads"):
        native.WorkerClient(registration(), rank=0, copy_threads=0, **options)
    worker = native.WorkerClient(registration(), rank=0, **options)
    assert (worker.connected, worker.self_test) == (False, "pending")
    with pytest.raises(native.OrbitKVError, match="ticket"):
        worker.restore(b"not a ticket", [0])
    assert worker.fence([0, 1], 1_000) == 0
    worker.close()
