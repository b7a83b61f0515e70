"""Parses the name of a model, without using the disk or the network."""

from __future__ import annotations

import re
from typing import TypeAlias

import msgspec

from sluiceway.errors import ModelSourceError

ACCEPTED = (
    "the default model `smollm2-135m`; a directory with safetensors, tokenizer.json and config.json; a .gguf file; "
    "a hub name `org/repo`, `org/repo@revision` or `org/repo:file.gguf`; or `fake`"
)

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_HUB = re.compile(
    rf"(?!.*\.\.)(?P<repo>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?(?::(?P<file>\w[\w./-]*\.gguf))?", re.ASCII
)
"""No name of the hub contains two dots, which would lead out of the folder of the repository."""


class FakeName(msgspec.Struct, frozen=True):
    """The fake model: the byte tokenizer and the fake runner."""


class PathName(msgspec.Struct, frozen=True):
    """A file or a directory on this machine, as it was typed."""

    path: str


class HubName(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of the model hub. `revision` is None for its main branch; `file` names one of its GGUF files."""

    repo: str
    revision: str | None = None
    file: str | None = None


class AliasName(msgspec.Struct, frozen=True):
    """A short name from the catalog."""

    alias: str


ModelName: TypeAlias = FakeName | PathName | HubName | AliasName


def parse(name: str, aliases: frozenset[str]) -> ModelName:
    """Parse a name. `org/repo` is a hub name, even if such a folder exists: the caller checks that.

    Raises `ModelSourceError`, which lists the accepted forms.
    """
    if name == "fake":
        return FakeName()
    if name in aliases:
        return AliasName(name)
    if _looks_like_a_path(name):
        return PathName(name)
    if hub := _HUB.fullmatch(name):
        return HubName(repo=hub["repo"], revision=hub["revision"], file=hub["file"])
    raise ModelSourceError(f"unknown model {name!r}; accepted are {ACCEPTED}")


def _looks_like_a_path(name: str) -> bool:
    bare_file = name.endswith(".gguf") and ":" not in name
    return bare_file or name.startswith(("/", "./", "../", "~")) or name in (".", "..") or name.endswith("/")
