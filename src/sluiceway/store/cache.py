"""The cache of models: where it is, and writing a file into it, whole or not at all, by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import platformdirs

from sluiceway.errors import ModelSourceError

CACHE_DIR_VARIABLE = "SLUICEWAY_CACHE_DIR"
OFFLINE_VARIABLE = "SLUICEWAY_OFFLINE"

CHUNK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


def cache_dir() -> Path:
    """Return `SLUICEWAY_CACHE_DIR`, else the user's cache directory of this system."""
    chosen = os.environ.get(CACHE_DIR_VARIABLE)
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("sluiceway")


def hub_cache_dir() -> Path | None:
    """Return the cache for hub repositories. None: the hub client's own cache, which it shares with other tools.

    `SLUICEWAY_CACHE_DIR` is for everything, so if it is set, hub repositories are kept in there too.
    """
    return cache_dir() / "hub" if os.environ.get(CACHE_DIR_VARIABLE) else None


def is_offline() -> bool:
    """True when `SLUICEWAY_OFFLINE` forbids to use the network."""
    return os.environ.get(OFFLINE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no", "off")


@contextlib.contextmanager
def disk_faults(directory: Path, needed_bytes: int = 0) -> Iterator[None]:
    """Turn an `OSError` of writing into `directory` into a `ModelSourceError` that says what to do.

    `needed_bytes` is 0 where it is not known.
    """
    try:
        yield
    except OSError as error:
        raise ModelSourceError(_sentence(error, directory, needed_bytes)) from error


def _sentence(error: OSError, directory: Path, needed_bytes: int) -> str:
    if error.errno in _FULL:
        need = f" (the model needs {needed_bytes / 1e6:.0f} MB)" if needed_bytes else ""
        return (
            f"the disk of {directory} is full{need}: "
            "free some space, or set SLUICEWAY_CACHE_DIR to a folder on another disk"
        )
    if error.errno in _FORBIDDEN:
        return (
            f"no permission to write in {directory} ({error.strerror}); set SLUICEWAY_CACHE_DIR to a folder of your own"
        )
    return f"cannot write in {directory}: {error.strerror or error}"


def require_space(directory: Path, needed_bytes: int) -> None:
    """Raise the `OSError` of a full disk before a long download, rather than in the middle of it."""
    if shutil.disk_usage(directory).free < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def exclusive(lock_path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of `lock_path`. If another process has it, call `on_wait` and wait.

    The system drops the lock when its holder dies. The file is not removed: otherwise two processes could lock two
    different files of the same name.
    """
    with lock_path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def place_file(source: IO[bytes], target: Path, sha256: str) -> None:
    """Copy `source` to `target`, which appears whole, on the disk and with this checksum, or not at all."""
    staged = target.with_name(f".{target.name}.staged")
    try:
        with staged.open("wb") as file:
            digest = hashlib.sha256()
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != sha256:
            raise ModelSourceError(f"{target.name} has the checksum {digest.hexdigest()}, but should have {sha256}")
        os.replace(staged, target)
        _sync_directory(target.parent)
    finally:
        staged.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
