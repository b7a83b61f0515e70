"""What lies on the disk, and what is missing there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.model_files import SHARD_INDEX
from sluiceway.store.local import inspect, missing_files


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
    with pytest.raises(ModelSourceError, match=r"lacks tokenizer\.json, model\.safetensors \(or "):
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
    with pytest.raises(ModelSourceError, match="is not an index of shards"):
        inspect(folder)


def test_shards_without_an_index_are_no_model(tmp_path: Path) -> None:
    """They are named with the reason; only a directory that lacks weights hears of it."""
    folder = fill(tmp_path / "big", "config.json", "tokenizer.json", "a-1.safetensors")
    with pytest.raises(ModelSourceError, match=r"lacks model\.safetensors; a-1\.safetensors cannot be used, as "):
        inspect(folder)
    fill(folder, "model.safetensors")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelSourceError, match=r"lacks tokenizer\.json$"):
        inspect(folder)


def test_any_part_of_a_gguf_model_stands_for_the_whole(tmp_path: Path) -> None:
    """The path is that of the first part; the name has no number."""
    parts = [tmp_path / f"tiny-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF....")
    expected = ModelFiles(kind=ModelKind.GGUF, path=str(parts[0]), name="tiny")
    assert inspect(parts[0]) == inspect(parts[1]) == expected
    parts[1].write_bytes(b"PK")
    with pytest.raises(ModelSourceError, match="tiny-00002-of-00002.gguf is not a GGUF file"):
        inspect(parts[0])
    parts[0].unlink()
    with pytest.raises(ModelSourceError, match="has 2 files, and tiny-00001-of-00002.gguf cannot be found"):
        inspect(parts[1])


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
