"""The tiny model is the same for the same seed, and only its weights differ for another."""

from __future__ import annotations

from pathlib import Path

import tiny_model


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_seed_decides_the_weights_and_nothing_else(tmp_path: Path) -> None:
    for name, seed in (("first", 7), ("again", 7), ("other", 8)):
        tiny_model.write_model(tmp_path / name, seed, "bf16", layers=2)
    first, again, other = (contents(tmp_path / name) for name in ("first", "again", "other"))
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"model.safetensors"}


def test_existing_model_is_replaced(tmp_path: Path) -> None:
    tiny_model.write_model(tmp_path / "model", 7, "bf16", layers=1)
    before = contents(tmp_path / "model")
    tiny_model.write_model(tmp_path / "model", 7, "fp32", layers=1)
    assert contents(tmp_path / "model")["config.json"] != before["config.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_tokenizer_round_trips_any_bytes() -> None:
    tokenizer = tiny_model.build_tokenizer()
    text = "KV cache é 中 \n\t{}"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
