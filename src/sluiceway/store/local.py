"""Checks models on this machine: which kind they are, and which files a directory lacks."""

from __future__ import annotations

from pathlib import Path

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.model_files import gguf_name, gguf_parts, missing_weights, why_unused

GGUF_MAGIC = b"GGUF"


def inspect(path: Path, name: str | None = None) -> ModelFiles:
    """Describe the model at `path`, a directory or a GGUF file. `name` is None for the file's own name.

    Raises `ModelSourceError` if files are missing, or if it is not a model.
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
    """Return the names of the files that a model directory lacks."""
    missing = [name for name in ("config.json", "tokenizer.json") if not (directory / name).is_file()]
    return missing + missing_weights(directory)


def _directory(path: Path, name: str | None) -> ModelFiles:
    if missing := missing_files(path):
        why = why_unused(path) if missing_weights(path) else ""
        raise ModelSourceError(f"the model directory {path} lacks {', '.join(missing)}{why}")
    return ModelFiles(kind=ModelKind.DIRECTORY, path=str(path.absolute()), name=name or path.resolve().name)


def _gguf(path: Path, name: str | None) -> ModelFiles:
    """Describe a GGUF model. `path` may be any of its parts."""
    parts = gguf_parts(path)
    for part in parts:
        with part.open("rb") as file:
            if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
                raise ModelSourceError(f"{part} is not a GGUF file: it does not begin with {GGUF_MAGIC.decode()}")
    return ModelFiles(kind=ModelKind.GGUF, path=str(parts[0].absolute()), name=name or gguf_name(path))
