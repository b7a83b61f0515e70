"""Loading every kind of tokenizer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.text.load import load_eos_token_ids, load_tokenizer
from support import gguf_files, vocabularies


def files(kind: ModelKind, path: Path) -> ModelFiles:
    return ModelFiles(kind=kind, path=str(path), name="m")


def test_each_kind_of_model_has_its_tokenizer(tmp_path: Path) -> None:
    """From no files, from one file, and from a directory."""
    gguf = gguf_files.write(tmp_path / "m.gguf", vocabularies.byte_level_gguf())
    expected = vocabularies.byte_level().encode("the fox").ids
    assert isinstance(load_tokenizer(files(ModelKind.FAKE, tmp_path)), ByteTokenizer)
    assert load_tokenizer(files(ModelKind.GGUF, gguf)).encode("the fox") == expected
    directory = vocabularies.write_directory(tmp_path)
    assert load_tokenizer(files(ModelKind.DIRECTORY, directory)).encode("the fox") == expected


def test_end_tokens_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    """For every kind of tokenizer."""
    gguf = gguf_files.write(tmp_path / "m.gguf", vocabularies.byte_level_gguf() | {"tokenizer.ggml.eot_token_id": 1})
    directory = vocabularies.write_directory(tmp_path)
    for kind, path in [(ModelKind.FAKE, tmp_path), (ModelKind.GGUF, gguf), (ModelKind.DIRECTORY, directory)]:
        model = files(kind, path)
        assert load_eos_token_ids(model) == load_tokenizer(model).eos_token_ids != ()


@pytest.mark.parametrize("kind", [ModelKind.GGUF, ModelKind.DIRECTORY])
def test_a_missing_model_is_a_source_error(tmp_path: Path, kind: ModelKind) -> None:
    for load in (load_tokenizer, load_eos_token_ids):
        with pytest.raises(ModelSourceError):
            load(files(kind, tmp_path / "absent"))


def test_the_librarys_own_threads_are_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library would warn after a fork. A variable that is already set is kept."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    load_tokenizer(files(ModelKind.FAKE, tmp_path))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    load_tokenizer(files(ModelKind.FAKE, tmp_path))
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
