"""Regions from strides, and the layout probe, which must notice every kind of wrong address."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from orbitkv.engine.regions import LayoutError, region_of
from orbitkv.engine.selftest import probe_layout, scratch_like
from orbitkv.vllm.layout import regions_of

B, H, N, C = 8, 2, 4, 16
PAGE = H * N * C * 2


def strided(order: str, ratio: int = 1) -> torch.Tensor:
    """A logical [B, H, N, C] view of memory in the given physical order, the first of three layers."""
    sizes = {"L": 3, "B": B * ratio, "H": H, "N": N // ratio, "C": C}
    memory = torch.zeros([sizes[axis] for axis in order], dtype=torch.bfloat16)
    return memory.permute([order.index(axis) for axis in "LBHNC"])[0]


@pytest.mark.parametrize(
    ("order", "stride"), [("LBHNC", PAGE), ("LBNHC", PAGE), ("BLHNC", 3 * PAGE), ("BLNHC", 3 * PAGE)]
)
def test_block_compact_layouts(native: Any, order: str, stride: int) -> None:
    tensor = strided(order)
    region = region_of("x.0", tensor, B, PAGE)
    assert (region.block_stride_bytes, region.block_bytes, region.ratio) == (stride, PAGE, 1)
    assert probe_layout(scratch_like([region], native), native) is None


def test_layers_that_lie_within_one_another_are_probed_together(native: Any) -> None:
    sizes = {"L": 3, "B": B, "H": H, "N": N, "C": C}
    memory = torch.zeros([sizes[axis] for axis in "BLHNC"], dtype=torch.bfloat16)
    layers = memory.permute(["BLHNC".index(axis) for axis in "LBHNC"])
    regions = [region_of(f"x.{at}", layers[at], B, PAGE) for at in range(3)]
    scratch = scratch_like(regions, native)
    # Three blocks of three layers, once.
    assert {region.tensor.untyped_storage().nbytes() for region in scratch.regions} == {9 * PAGE}
    assert len({region.tensor.untyped_storage().data_ptr() for region in scratch.regions}) == 1
    assert probe_layout(scratch, native) is None
    module = wrong(native, lambda regions: list(reversed(regions)))
    assert "wrong place" in probe_layout(scratch_like(regions, module), module)


def test_kernel_blocks_smaller_than_the_scheduler_block(native: Any) -> None:
    region = region_of("x.0", strided("LBHNC", ratio=2), B, PAGE)
    assert (region.ratio, region.block_stride_bytes) == (2, PAGE)
    assert probe_layout(scratch_like([region], native), native) is None


@pytest.mark.parametrize(
    ("tensor", "page", "said"),
    [
        (strided("LHBNC"), PAGE, "not contiguous"),
        (strided("BHLNC"), PAGE, "not contiguous"),
        (strided("LBHNC"), PAGE * 2, "the engine says"),
        (strided("LBHNC")[:5], PAGE, "does not count"),
        (strided("BLHNC", ratio=2), PAGE, "not adjacent"),
        (torch.zeros(()), PAGE, "does not count"),
        (strided("LBHNC").to("meta"), PAGE, "only host memory and NVIDIA devices"),
    ],
)
def test_what_cannot_be_copied_is_refused(tensor: torch.Tensor, page: int, said: str) -> None:
    with pytest.raises(LayoutError, match=said) as error:
        region_of("model.layers.0", tensor, B, page)
    assert "\n" not in str(error.value)
    if tensor.device.type == "cpu":
        assert f"shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}" in str(error.value)


def test_an_unknown_layout_switches_the_cache_off_alone(
    make_engine: Any, mini: Any, manager: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = mini.kv_tensors()
    # K and V in tensors of their own, as some backends keep a state.
    states = {layer: list(tensor.chunk(2, dim=-1)) for layer, tensor in tensors.items()}
    # Heads outermost: no block is one run of bytes.
    spread = {
        layer: tensor.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)
        for layer, tensor in tensors.items()
    }
    for given, said in (
        (states, "is a list, not one tensor"),
        (spread, "shape (64, 2, 4, 16), strides (64, 4096,"),
    ):
        lines.clear()
        monkeypatch.setattr(mini, "kv_tensors", lambda num_blocks, given=given: given)
        engine = make_engine()
        (line,) = [line for line in lines if line.startswith("OrbitKV off")]
        assert said in line
        assert "model.layers.0.self_attn.attn" in line
        assert "Traceback" not in "".join(lines)
        engine.kv = tensors
        engine.compute_and_save(mini.FakeRequest("a", list(range(18))))
        assert manager.pages == {}
        assert engine.invalid[-1] == set()


def test_layers_come_in_model_order(mini: Any) -> None:
    cache, tensors = mini.kv_cache_config(), mini.kv_tensors()
    cache.kv_cache_groups[0].layer_names.reverse()
    names = [region.layer for region in regions_of(dict(reversed(tensors.items())), cache)]
    assert names == [f"model.layers.{index}.self_attn.attn" for index in range(3)]


def test_shared_tensors_are_refused(mini: Any) -> None:
    tensors = mini.kv_tensors()
    first = next(iter(tensors.values()))
    with pytest.raises(LayoutError, match="share"):
        regions_of(dict.fromkeys(tensors, first), mini.kv_cache_config())


def wrong(native: Any, change: Any) -> Any:
    """The native module with other addresses than it was given."""

    class Wrong(native.Layout):
        def __init__(self, regions: list[tuple[int, int, int, int]]) -> None:
            super().__init__(change(regions))

    return type("Module", (), {**vars(native), "Layout": Wrong})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda regions: [(a + 2, s, n, b) for a, s, n, b in regions], "wrong place"),
        (lambda regions: [(a, s - 64, n, b) for a, s, n, b in regions], "wrong place"),
        (lambda regions: list(reversed(regions)), "wrong place"),
        (lambda regions: [(a, 0, n, b) for a, s, n, b in regions], "two blocks"),
    ],
)
def test_probe_notices_wrong_addresses(native: Any, mini: Any, change: Any, said: str) -> None:
    regions = regions_of(mini.kv_tensors(), mini.kv_cache_config())
    module = wrong(native, change)
    assert said in probe_layout(scratch_like(regions, module), module)


def test_probe_notices_a_write_beside_the_block(native: Any, mini: Any) -> None:
    def scatter(layout: Any, block: int, payload: bytes, device: str) -> None:
        native.scatter_block(layout, block, payload)
        native.scatter_block(layout, block + 1, payload)

    module = type("Module", (), {**vars(native), "scatter_block": staticmethod(scatter)})
    regions = regions_of(mini.kv_tensors(), mini.kv_cache_config())
    assert "other bytes" in probe_layout(scratch_like(regions, module), module)


def test_failed_probe_switches_the_worker_off(
    make_engine: Any, mini: Any, manager: Any, native: Any, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "gather_block", lambda layout, block, device: bytes([block]) * 768)
    engine = make_engine()
    assert [line for line in lines if "layout self-test failed" in line]
    engine.compute_and_save(mini.FakeRequest("a", list(range(18))))
    assert manager.pages == {}
