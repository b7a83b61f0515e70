"""What lies on the disk, and what is missing there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.store.local import SHARD_INDEX, inspect, missing_files


def fill(directory: Path, *names: str) -> Path:
    directory.mkdir(exist_ok=True)
    for name in names:
        (directory / name).write_bytes(b"{}")
    return directory


def test_directory_is_a_model_when_whole(tmp_path: Path) -> None:
    """Configuration, tokenizer and weights; its name is the folder's."""
    folder = fill(tmp_path / "tiny", "config.json", "tokenizer.json", "model.safetensors")
    assert inspect(folder) == ModelFiles(kind=ModelKind.DIRECTORY, path=str(folder), name="tiny")


def test_name_is_the_callers_when_given(tmp_path: Path) -> None:
    """A snapshot's folder name is a hash; the name that was asked for is better."""
    folder = fill(tmp_path / "tiny", "config.json", "tokenizer.json", "model.safetensors")
    assert inspect(folder, "org/repo").name == "org/repo"


def test_directory_is_refused_naming_what_it_lacks(tmp_path: Path) -> None:
    """All missing files at once."""
    folder = fill(tmp_path / "tiny", "config.json")
    with pytest.raises(ModelSourceError, match=r"lacks tokenizer\.json, \*\.safetensors"):
        inspect(folder)


def test_missing_shards_are_named_when_there_is_an_index(tmp_path: Path) -> None:
    """The index says which files make up the weights."""
    folder = fill(tmp_path / "big", "config.json", "tokenizer.json", "a.safetensors")
    weights = {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}
    (folder / SHARD_INDEX).write_text(json.dumps({"weight_map": weights}))
    assert missing_files(folder) == ["b.safetensors"]


def test_index_is_refused_when_it_is_none(tmp_path: Path) -> None:
    """A damaged index is named, not read as an empty one."""
    folder = fill(tmp_path / "big", "config.json", "tokenizer.json", SHARD_INDEX)
    with pytest.raises(ModelSourceError, match="is not an index of safetensors files"):
        inspect(folder)


def test_gguf_file_is_a_model(tmp_path: Path) -> None:
    """Its name is the file's, without the ending."""
    file = tmp_path / "tiny.Q4_1.gguf"
    file.write_bytes(b"GGUF....")
    assert inspect(file) == ModelFiles(kind=ModelKind.GGUF, path=str(file), name="tiny.Q4_1")


def test_file_is_refused_when_it_is_no_gguf(tmp_path: Path) -> None:
    """The first bytes tell, not the ending."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelSourceError, match="does not begin with GGUF"):
        inspect(file)


def test_path_is_refused_when_nothing_is_there(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(ModelSourceError, match="there is no file or directory .*nowhere"):
        inspect(tmp_path / "nowhere")


def test_unreadable_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system becomes ours."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelSourceError, match="cannot read .*tiny.gguf: Permission denied"):
        inspect(file)
