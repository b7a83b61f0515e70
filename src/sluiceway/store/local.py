"""Models that lie on this machine: what is there, and what a directory lacks."""

from __future__ import annotations

from pathlib import Path

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.model_files import gguf_name, gguf_parts, missing_weights, why_unused

GGUF_MAGIC = b"GGUF"


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
    return missing + missing_weights(directory)


def _directory(path: Path, name: str | None) -> ModelFiles:
    if missing := missing_files(path):
        why = why_unused(path) if missing_weights(path) else ""
        raise ModelSourceError(f"the model directory {path} lacks {', '.join(missing)}{why}")
    return ModelFiles(kind=ModelKind.DIRECTORY, path=str(path.absolute()), name=name or path.resolve().name)


def _gguf(path: Path, name: str | None) -> ModelFiles:
    """Any part of a model in several files names the whole model."""
    parts = gguf_parts(path)
    for part in parts:
        with part.open("rb") as file:
            if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise ModelSourceError(f"{part} is not a GGUF file: it does not begin with {GGUF_MAGIC.decode()}")
    return ModelFiles(kind=ModelKind.GGUF, path=str(parts[0].absolute()), name=name or gguf_name(path))
