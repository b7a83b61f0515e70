"""Directories of safetensors: one file, shards, views without copies, and wrong files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sluiceway.errors import ModelSourceError
from sluiceway.model.safetensors import SafetensorsCheckpoint

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def sharded(directory: Path) -> Path:
    save_file({"a": TENSORS["a"]}, directory / "x-1.safetensors")
    save_file({"b": TENSORS["b"]}, directory / "x-2.safetensors")
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def single(directory: Path) -> Path:
    save_file(TENSORS, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("make", [single, sharded])
def test_tensors_are_read_from_one_file_and_from_shards(tmp_path: Path, make: object) -> None:
    """The test compares shapes, sizes in the file, and values in the requested dtype."""
    checkpoint = SafetensorsCheckpoint(single(tmp_path) if make is single else sharded(tmp_path))
    assert checkpoint.shapes == {"a": (2, 3), "b": (4,)}
    assert (checkpoint.source_bytes("a"), checkpoint.source_bytes("b")) == (24, 8)
    out = torch.zeros(4)
    checkpoint.read_into("b", out)
    assert out.tolist() == [1.0] * 4
    assert checkpoint.frequency_divisors() is None


def test_a_tensor_is_a_view_of_its_file_when_the_dtype_is_its_own(tmp_path: Path) -> None:
    """A later change of the file shows in the tensor, so nothing was copied."""
    checkpoint = SafetensorsCheckpoint(single(tmp_path))
    view = checkpoint.mapped("a", torch.float32)
    assert view is not None and torch.equal(view, TENSORS["a"])
    with open(tmp_path / "model.safetensors", "r+b") as file:
        raw = file.read()
        file.seek(raw.index(TENSORS["a"].numpy().tobytes()))
        file.write(torch.full((2, 3), 9.0).numpy().tobytes())
    assert (view == 9.0).all()


def test_there_is_no_view_in_another_dtype(tmp_path: Path) -> None:
    """A conversion is a copy."""
    assert SafetensorsCheckpoint(single(tmp_path)).mapped("b", torch.float32) is None


def test_a_damaged_file_is_a_source_error(tmp_path: Path) -> None:
    """The file is cut in the tensors or in the head, is empty, or has another format."""
    whole = (single(tmp_path) / "model.safetensors").read_bytes()
    for content in (whole[:-5], whole[:30], b"", b"\xff" * 100):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ModelSourceError, match="cannot be read as safetensors"):
            SafetensorsCheckpoint(tmp_path)


def test_a_directory_without_weights_says_what_was_looked_for(tmp_path: Path) -> None:
    """The error has both names."""
    with pytest.raises(ModelSourceError, match=r"lacks model\.safetensors \(or model\.safetensors\.index\.json"):
        SafetensorsCheckpoint(tmp_path)


def test_a_missing_shard_is_a_source_error(tmp_path: Path) -> None:
    """The index names it."""
    (sharded(tmp_path) / "x-2.safetensors").unlink()
    with pytest.raises(ModelSourceError, match="x-2"):
        SafetensorsCheckpoint(tmp_path)


def test_a_tensor_in_two_shards_is_a_source_error(tmp_path: Path) -> None:
    """The loader cannot know which of them counts."""
    save_file(TENSORS, sharded(tmp_path) / "x-2.safetensors")
    with pytest.raises(ModelSourceError, match="x-2.safetensors: has the tensor 'a', which another shard has too"):
        SafetensorsCheckpoint(tmp_path)


def test_a_whole_file_is_used_though_an_index_names_shards_that_are_gone(tmp_path: Path) -> None:
    """Transformers does the same. Shards of another model in the directory are ignored."""
    (sharded(tmp_path) / "x-2.safetensors").unlink()
    assert SafetensorsCheckpoint(single(tmp_path)).shapes == {"a": (2, 3), "b": (4,)}


def test_integers_are_not_weights(tmp_path: Path) -> None:
    """Some quantised checkpoints have them."""
    save_file({"q": torch.ones(3, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelSourceError, match="'q' is I8"):
        SafetensorsCheckpoint(tmp_path)
