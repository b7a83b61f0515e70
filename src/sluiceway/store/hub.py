"""Fetches models from the model hub: only the files that they need, checked against the hub's checksums."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sluiceway.errors import ModelSourceError
from sluiceway.model_files import gguf_part_paths
from sluiceway.store.cache import CHUNK_BYTES, disk_faults, sha256_of
from sluiceway.store.local import missing_files
from sluiceway.store.names import HubName
from sluiceway.store.proxies import proxy_for, without_password

REACH_S = 5.0
"""The limit for listing a repository, including the resolution of the hub's address, which has no other limit."""

NEEDED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*.json",
    "config.json",
    "generation_config.json",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
)


def local_snapshot(name: HubName, cache: Path | None) -> Path | None:
    """Find a complete model in the hub cache, without the network: its folder, or its GGUF file.

    Raises `ModelSourceError` for a name that the hub does not allow.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                name.repo,
                revision=name.revision,
                cache_dir=cache,
                allow_patterns=list(_patterns(name)),
                local_files_only=True,
            )
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelSourceError(f"{name.repo} is not a name of a hub repository: {error}") from error
    return _whole(name, folder)


def pull_snapshot(name: HubName, cache: Path | None, *, show_bars: bool, endpoint: str | None = None) -> Path:
    """Fetch the missing files and return the model's folder or GGUF file. Raises `ModelSourceError`.

    The hub client continues interrupted downloads, takes a lock against other pulls and draws the bars. `endpoint` is
    None for the client's own setting.
    """
    _check_contents(name, _files_of(name, endpoint))
    folder = _download(name, cache, show_bars, endpoint)
    found = _whole(name, folder)
    if found is None:
        raise ModelSourceError(f"{name.repo} is incomplete: it lacks {', '.join(missing_files(folder))}")
    _verify(folder)
    return found


def _patterns(name: HubName) -> Sequence[str]:
    """Return the files to fetch. All parts of a GGUF file are fetched."""
    return [str(part) for part in gguf_part_paths(Path(name.file))] if name.file else NEEDED


def _whole(name: HubName, folder: Path) -> Path | None:
    if name.file:
        parts = gguf_part_paths(folder / name.file)
        return parts[0] if all(part.is_file() for part in parts) else None
    return None if missing_files(folder) else folder


def _files_of(name: HubName, endpoint: str | None) -> list[str]:
    from huggingface_hub import HfApi

    def ask() -> list[str]:
        info = HfApi(endpoint=endpoint).model_info(name.repo, revision=name.revision, timeout=REACH_S)
        return [sibling.rfilename for sibling in info.siblings or ()]

    try:
        return _within(REACH_S, ask)
    except Exception as error:  # the client raises the errors of the HTTP library that it uses
        raise ModelSourceError(_reason(name, error, endpoint)) from error


def _within(seconds: float, ask: Callable[[], list[str]]) -> list[str]:
    """Call `ask` in a thread, and abandon the thread if it takes longer."""
    answers: queue.SimpleQueue[list[str] | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except Exception as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True, name="hub-probe").start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _check_contents(name: HubName, files: Sequence[str]) -> None:
    """Refuse a repository that has no supported files, before anything is fetched."""
    ggufs = [file for file in files if file.endswith(".gguf")]
    if name.file:
        for part in map(str, gguf_part_paths(Path(name.file))):
            if part not in files:
                raise ModelSourceError(f"{name.repo} has no file {part}; its GGUF files: {', '.join(ggufs) or 'none'}")
        return
    if not any(file.endswith(".safetensors") for file in files):
        hint = f"; name one of its GGUF files: {name.repo}:{ggufs[0]}" if ggufs else ""
        raise ModelSourceError(f"{name.repo} has no safetensors weights{hint}")


def _download(name: HubName, cache: Path | None, show_bars: bool, endpoint: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not show_bars:
        disable_progress_bars()
    place = cache or Path(constants.HF_HUB_CACHE)
    options: dict[str, Any] = {"cache_dir": cache, "allow_patterns": list(_patterns(name)), "endpoint": endpoint}
    try:
        with disk_faults(place):
            return Path(snapshot_download(name.repo, revision=name.revision, **options))
    except ModelSourceError:
        raise
    except Exception as error:  # see `_files_of`
        raise ModelSourceError(_reason(name, error, endpoint)) from error


def _verify(folder: Path) -> None:
    """Compare each file with its checksum in the hub cache. Remove a damaged file and raise `ModelSourceError`.

    The cache names a blob by the hub's entity tag: the sha256 of a large file, the git blob id of a small one.
    """
    for link in sorted(path for path in folder.rglob("*") if path.is_symlink()):
        blob = link.resolve()
        if _digest(blob) != blob.name:
            blob.unlink()
            link.unlink()
            raise ModelSourceError(f"{link.name} was damaged on the way and has been removed; pull it again")


def _digest(blob: Path) -> str:
    if len(blob.name) == 64:
        return sha256_of(blob)
    digest = hashlib.sha1(f"blob {blob.stat().st_size}\0".encode(), usedforsecurity=False)
    with blob.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _reason(name: HubName, error: Exception, endpoint: str | None) -> str:
    from huggingface_hub import constants, errors

    if isinstance(error, errors.GatedRepoError):
        return f"{name.repo} is gated: accept its terms on the hub and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub has no repository {name.repo}, or it is private and needs HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repo} has no revision {name.revision}"
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    proxy = proxy_for(endpoint or constants.ENDPOINT)
    through = f" through the proxy {without_password(proxy)}" if proxy else ""
    return f"the model hub cannot be reached{through} ({first_line})"
