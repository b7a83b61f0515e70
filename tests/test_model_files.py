"""Which files make up a model, and errors in JSON files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluiceway import model_files
from sluiceway.errors import ModelSourceError
from sluiceway.model_files import (
    SHARD_INDEX,
    SINGLE,
    gguf_name,
    gguf_part_paths,
    gguf_parts,
    missing_weights,
    read_json_object,
    unused_weights,
    weight_files,
)

INDEX = json.dumps({"weight_map": {"x": "b-1.safetensors", "y": "b-2.safetensors", "z": "b-2.safetensors"}})


def fill(directory: Path, *names: str, index: str | None = None) -> Path:
    for name in names:
        (directory / name).write_bytes(b"")
    if index is not None:
        (directory / SHARD_INDEX).write_text(index)
    return directory


@pytest.mark.parametrize(
    ("names", "index", "used"),
    [
        ((SINGLE,), None, [SINGLE]),
        (("b-1.safetensors", "b-2.safetensors"), INDEX, ["b-1.safetensors", "b-2.safetensors"]),
        ((SINGLE, "b-1.safetensors"), INDEX, [SINGLE]),
        ((SINGLE, "b-1.safetensors", "b-2.safetensors"), INDEX, [SINGLE]),
        ((SINGLE,), "{", [SINGLE]),
        (("b-1.safetensors", "b-2.safetensors", "a-1.safetensors"), INDEX, ["b-1.safetensors", "b-2.safetensors"]),
    ],
)
def test_a_whole_file_comes_before_the_shards_of_an_index(
    tmp_path: Path, names: tuple[str, ...], index: str | None, used: list[str]
) -> None:
    """The check and the loader get the same answer, whatever other files exist."""
    fill(tmp_path, *names, index=index)
    assert [path.name for path in weight_files(tmp_path)] == used
    assert missing_weights(tmp_path) == []
    assert unused_weights(tmp_path) == sorted(set(names) - set(used))


@pytest.mark.parametrize(
    ("names", "index", "message"),
    [
        ((), None, r"lacks model\.safetensors \(or model\.safetensors\.index\.json with its shards\)$"),
        (("a-1.safetensors",), None, r"lacks model\.safetensors; a-1\.safetensors cannot be used, as .* is not there"),
        (("b-1.safetensors",), INDEX, r"lacks b-2\.safetensors$"),
        (("b-1.safetensors", "c.safetensors"), INDEX, r"lacks b-2\.safetensors; c\.safetensors .* names other files"),
    ],
)
def test_error_names_missing_weights_and_files_that_cannot_replace_them(
    tmp_path: Path, names: tuple[str, ...], index: str | None, message: str
) -> None:
    with pytest.raises(ModelSourceError, match=message):
        weight_files(fill(tmp_path, *names, index=index))


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": ["x"]}}', "[" * 99_999],
)
def test_a_broken_index_is_a_source_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelSourceError, match=r"index\.json: "):
        weight_files(fill(tmp_path, index=content))


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/x", "sub/x", "", ".", "..", "a\0b"])
def test_index_may_name_only_files_of_its_directory(tmp_path: Path, name: str) -> None:
    """A path to another directory is refused and not read."""
    with pytest.raises(ModelSourceError, match="outside the directory"):
        weight_files(fill(tmp_path, index=json.dumps({"weight_map": {"a": name}})))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"[]", "must hold a JSON object"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"a": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "is not JSON"),
        (b'{"a": ["\\ud83d"]}', "is not JSON: .*surrogates not allowed"),
    ],
)
def test_json_that_cannot_be_read_is_a_source_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelSourceError, match=f"config.json: .*{message}"):
        read_json_object(path)


def test_json_is_not_read_when_it_is_missing_or_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ModelSourceError, match="config.json: cannot be read: No such file"):
        read_json_object(path)
    path.write_text('{"a": 1}')
    assert read_json_object(path) == {"a": 1}
    path.write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json_object(path) == {"a": "\N{GRINNING FACE}"}
    monkeypatch.setattr(model_files, "MAX_JSON_BYTES", 1)
    with pytest.raises(ModelSourceError, match="is larger than"):
        read_json_object(path)


def test_gguf_file_is_a_whole_model_unless_its_name_has_a_part_number(tmp_path: Path) -> None:
    """The reader finds out whether the file exists."""
    path = tmp_path / "tiny.Q4-00001.gguf"
    assert gguf_parts(path) == gguf_part_paths(path) == [path]
    assert gguf_name(path) == "tiny.Q4-00001"


def test_all_parts_of_a_gguf_model_follow_from_the_name_of_one(tmp_path: Path) -> None:
    parts = [tmp_path / f"tiny-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert gguf_part_paths(parts[1]) == parts
    assert gguf_name(parts[1]) == "tiny"
    fill(tmp_path, parts[0].name, parts[2].name)
    with pytest.raises(ModelSourceError, match="has 3 files, and tiny-00002-of-00003.gguf cannot be found"):
        gguf_parts(parts[0])
    fill(tmp_path, parts[1].name)
    assert gguf_parts(parts[2]) == parts


def test_many_missing_parts_are_named_in_one_line(tmp_path: Path) -> None:
    fill(tmp_path, "m-00001-of-00099.gguf")
    with pytest.raises(ModelSourceError, match="00006-of-00099.gguf and 93 more cannot be found"):
        gguf_parts(tmp_path / "m-00001-of-00099.gguf")


@pytest.mark.parametrize("name", ["m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-00001-of-99999.gguf"])
def test_impossible_part_number_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelSourceError, match="which cannot be"):
        gguf_parts(fill(tmp_path, name) / name)
