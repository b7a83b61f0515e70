"""The environment: where models are kept, whether the network may be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.store import places


def test_cache_is_the_users_own_when_nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The system's convention; hub repositories stay in the hub client's cache."""
    monkeypatch.delenv(places.CACHE_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.cache_dir().is_relative_to(tmp_path)
    assert places.hub_cache_dir() is None


def test_one_folder_holds_everything_when_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable moves both caches."""
    monkeypatch.setenv(places.CACHE_DIR_VARIABLE, str(tmp_path))
    assert places.cache_dir() == tmp_path
    assert places.hub_cache_dir() == tmp_path / "hub"


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("yes", True), ("0", False), ("", False), ("False", False)]
)
def test_offline_is_what_the_variable_says(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    """Any word but the usual ones for "no" means yes."""
    monkeypatch.setenv(places.OFFLINE_VARIABLE, value)
    assert places.is_offline() is expected


def test_offline_is_false_when_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network may be used by default."""
    monkeypatch.delenv(places.OFFLINE_VARIABLE, raising=False)
    assert not places.is_offline()
