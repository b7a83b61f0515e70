"""Models that lie on this machine: what is there, and what a directory lacks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError

GGUF_MAGIC = b"GGUF"
SHARD_INDEX = "model.safetensors.index.json"


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


def inspect(path: Path, name: str | None = None) -> ModelFiles:
    """The model at `path`, a directory or a GGUF file, served as `name` (the file's own name by default).

    Raises `ModelSourceError`: it names what is missing, or says that it is no model.
    """
    try:
        if path.is_dir():
            return _directory(path, name)
        if path.is_file():
            return _gguf(path, name)
    except OSError as error:
        raise ModelSourceError(f"cannot read {path}: {error.strerror}") from error
    raise ModelSourceError(f"there is no file or directory {path}")


def missing_files(directory: Path) -> list[str]:
    """What a model directory lacks, by name; empty when it is whole."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    return missing + _missing_weights(directory)


def _missing_weights(directory: Path) -> list[str]:
    index = directory / SHARD_INDEX
    if not index.is_file():
        return [] if any(directory.glob("*.safetensors")) else ["*.safetensors"]
    try:
        shards = set(msgspec.json.decode(index.read_bytes(), type=_ShardIndex).weight_map.values())
    except msgspec.DecodeError as error:
        raise ModelSourceError(f"{index} is not an index of safetensors files: {error}") from error
    return sorted(shard for shard in shards if not (directory / shard).is_file())


def _directory(path: Path, name: str | None) -> ModelFiles:
    if missing := missing_files(path):
        raise ModelSourceError(f"the model directory {path} lacks {', '.join(missing)}")
    return ModelFiles(kind=ModelKind.DIRECTORY, path=str(path.absolute()), name=name or path.resolve().name)


def _gguf(path: Path, name: str | None) -> ModelFiles:
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise ModelSourceError(f"{path} is not a GGUF file: it does not begin with {GGUF_MAGIC.decode()}")
    return ModelFiles(kind=ModelKind.GGUF, path=str(path.absolute()), name=name or path.stem)
