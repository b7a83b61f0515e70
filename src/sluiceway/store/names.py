"""What a person may call a model, told apart without touching disk or network."""

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
"""Two dots are in no name of the hub, and would lead out of the repository's folder."""


class FakeName(msgspec.Struct, frozen=True):
    """No model at all: the byte tokenizer and the fake runner."""


class PathName(msgspec.Struct, frozen=True):
    """A file or a directory on this machine, as it was typed."""

    path: str


class HubName(msgspec.Struct, frozen=True, kw_only=True):
    """A repository of the model hub. `revision` None is its main branch; `file` picks one GGUF file of it."""

    repo: str
    revision: str | None = None
    file: str | None = None


class AliasName(msgspec.Struct, frozen=True):
    """A name from the catalogue."""

    alias: str


ModelName: TypeAlias = FakeName | PathName | HubName | AliasName


def parse(name: str, aliases: frozenset[str]) -> ModelName:
    """The one reading of `name`. `org/repo` is read as a hub name; whether such a folder exists is the caller's check.

    Raises `ModelSourceError`, which says what is accepted.
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
