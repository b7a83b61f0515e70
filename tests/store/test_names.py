"""The names of models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluiceway.errors import ModelSourceError
from sluiceway.store.names import AliasName, FakeName, HubName, ModelName, PathName, parse

ALIASES = frozenset({"smollm2-135m"})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fake", FakeName()),
        ("smollm2-135m", AliasName("smollm2-135m")),
        ("./model", PathName("./model")),
        ("../model", PathName("../model")),
        (".", PathName(".")),
        ("/data/model", PathName("/data/model")),
        ("~/model", PathName("~/model")),
        ("model/", PathName("model/")),
        ("model.gguf", PathName("model.gguf")),
        ("folder/model.gguf", PathName("folder/model.gguf")),
        ("org/repo", HubName(repo="org/repo")),
        ("org/Repo-1.5_b", HubName(repo="org/Repo-1.5_b")),
        ("org/repo@v1.0", HubName(repo="org/repo", revision="v1.0")),
        ("org/repo@refs/pr/3", HubName(repo="org/repo", revision="refs/pr/3")),
        ("org/repo:q4/model.gguf", HubName(repo="org/repo", file="q4/model.gguf")),
        ("org/repo@main:model.gguf", HubName(repo="org/repo", revision="main", file="model.gguf")),
    ],
)
def test_name_is_parsed(name: str, expected: ModelName) -> None:
    """In every accepted form."""
    assert parse(name, ALIASES) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nix",
        "a/b/c",
        "org/repo:model.bin",
        "org/repo@",
        "ö/repo",
        "org/-x",
        "a b",
        "org/..",
        "org/r@../x",
        "org/r:../x.gguf",
        "org/r:/x.gguf",
    ],
)
def test_other_names_are_refused_with_what_is_accepted(name: str) -> None:
    """The error lists the accepted forms."""
    with pytest.raises(ModelSourceError, match="accepted are the default model `smollm2-135m`"):
        parse(name, ALIASES)


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_refused(name: str) -> None:
    """Any other text is an error, and raises nothing else."""
    try:
        parse(name, ALIASES)
    except ModelSourceError as refused:
        assert repr(name) in str(refused)
