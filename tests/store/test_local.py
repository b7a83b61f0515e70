"""Models on the disk, and missing files."""

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
    """With configuration, tokenizer and weights. Its name is that of the folder."""
    folder = fill(tmp_path / "tiny", "config.json", "tokenizer.json", "model.safetensors")
    assert inspect(folder) == ModelFiles(kind=ModelKind.DIRECTORY, path=str(folder), name="tiny")


def test_name_may_be_given(tmp_path: Path) -> None:
    """The folder of a snapshot is named by a hash, so the caller gives a name."""
    folder = fill(tmp_path / "tiny", "config.json", "tokenizer.json", "model.safetensors")
    assert inspect(folder, "org/repo").name == "org/repo"


def test_directory_is_refused_naming_what_it_lacks(tmp_path: Path) -> None:
    """The error names all missing files."""
    folder = fill(tmp_path / "tiny", "config.json")
    with pytest.raises(ModelSourceError, match=r"lacks tokenizer\.json, model\.safetensors \(or "):
        inspect(folder)


def test_missing_shards_are_named_when_there_is_an_index(tmp_path: Path) -> None:
    """The index says which files make up the weights."""
    folder = fill(tmp_path / "big", "config.json", "tokenizer.json", "a.safetensors")
    weights = {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"}
    (folder / SHARD_INDEX).write_text(json.dumps({"weight_map": weights}))
    assert missing_files(folder) == ["b.safetensors"]


def test_damaged_index_is_refused(tmp_path: Path) -> None:
    """It is not read as an empty one."""
    folder = fill(tmp_path / "big", "config.json", "tokenizer.json", SHARD_INDEX)
    with pytest.raises(ModelSourceError, match="is not an index of shards"):
        inspect(folder)


def test_shards_without_an_index_are_no_model(tmp_path: Path) -> None:
    """The error names them, but only if weights are missing."""
    folder = fill(tmp_path / "big", "config.json", "tokenizer.json", "a-1.safetensors")
    with pytest.raises(ModelSourceError, match=r"lacks model\.safetensors; a-1\.safetensors cannot be used, as "):
        inspect(folder)
    fill(folder, "model.safetensors")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelSourceError, match=r"lacks tokenizer\.json$"):
        inspect(folder)


def test_path_of_a_gguf_model_may_be_any_part(tmp_path: Path) -> None:
    """The result has the path of the first part, and a name without a number."""
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
    """Its name is that of the file, without the extension."""
    file = tmp_path / "tiny.Q4_1.gguf"
    file.write_bytes(b"GGUF....")
    assert inspect(file) == ModelFiles(kind=ModelKind.GGUF, path=str(file), name="tiny.Q4_1")


def test_file_is_refused_when_it_is_no_gguf(tmp_path: Path) -> None:
    """The first bytes decide, not the extension."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelSourceError, match="does not begin with GGUF"):
        inspect(file)


def test_path_is_refused_when_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="there is no file or directory .*nowhere"):
        inspect(tmp_path / "nowhere")


def test_unreadable_file_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the system becomes a `ModelSourceError`."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ModelSourceError, match="cannot read .*tiny.gguf: Permission denied"):
        inspect(file)
