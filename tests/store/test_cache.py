"""The cache: where it is, files that appear whole or not at all, and clear errors of the disk."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import threading
from collections import namedtuple
from pathlib import Path

import pytest

from sluiceway.errors import ModelSourceError
from sluiceway.store.cache import (
    CACHE_DIR_VARIABLE,
    OFFLINE_VARIABLE,
    cache_dir,
    disk_faults,
    exclusive,
    hub_cache_dir,
    is_offline,
    place_file,
    require_space,
    sha256_of,
)

CONTENT = bytes(range(256)) * 9000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def test_file_is_placed_whole(tmp_path: Path) -> None:
    """It has more than one chunk. Nothing else is left in the folder."""
    place_file(io.BytesIO(CONTENT), tmp_path / "model.gguf", SHA256)
    assert sha256_of(tmp_path / "model.gguf") == SHA256
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_nothing_is_placed_when_the_checksum_is_wrong(tmp_path: Path) -> None:
    """An old file stays as it was."""
    target = tmp_path / "model.gguf"
    target.write_bytes(b"old")
    with pytest.raises(ModelSourceError, match=f"should have {SHA256}"):
        place_file(io.BytesIO(CONTENT[:-1]), target, SHA256)
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_nothing_is_left_when_the_source_breaks(tmp_path: Path) -> None:
    """The staged file is removed."""

    class Breaking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell() > 0:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(size)

    with pytest.raises(OSError, match="Input/output error"):
        place_file(Breaking(CONTENT), tmp_path / "model.gguf", SHA256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, r"is full \(the model needs 2 MB\): free some space, or set SLUICEWAY_CACHE_DIR"),
        (errno.EDQUOT, "is full"),
        (errno.EACCES, r"no permission to write in .* \(denied\); set SLUICEWAY_CACHE_DIR"),
        (errno.EROFS, "no permission to write in"),
        (errno.EIO, "cannot write in .*: denied"),
    ],
)
def test_error_of_the_disk_says_what_to_do(tmp_path: Path, number: int, sentence: str) -> None:
    """Common errors have a remedy, others the reason."""
    with pytest.raises(ModelSourceError, match=sentence), disk_faults(tmp_path, 2_000_000):
        raise OSError(number, "denied")


def test_full_disk_is_an_error_without_an_unknown_size(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="is full: free some space"), disk_faults(tmp_path):
        raise OSError(errno.ENOSPC, "full")


def test_too_little_space_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just enough is no error."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
    require_space(tmp_path, 10)
    with pytest.raises(OSError) as full:
        require_space(tmp_path, 11)
    assert full.value.errno == errno.ENOSPC


def test_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """The second one reports that it waits, and continues when the first has finished."""
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with exclusive(tmp_path / ".lock", waiting.set):
            order.append("second")

    with exclusive(tmp_path / ".lock", lambda: order.append("never")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10), "the second holder did not say that it waits"
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_the_cache_is_the_users_own_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hub repositories are in the hub client's own cache then."""
    monkeypatch.delenv(CACHE_DIR_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir().is_relative_to(tmp_path)
    assert hub_cache_dir() is None


def test_the_variable_moves_both_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(tmp_path))
    assert cache_dir() == tmp_path
    assert hub_cache_dir() == tmp_path / "hub"


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("yes", True), ("0", False), ("", False), ("False", False)]
)
def test_the_variable_forbids_the_network(monkeypatch: pytest.MonkeyPatch, value: str, expected: bool) -> None:
    """Any word that does not mean "no" means "yes"."""
    monkeypatch.setenv(OFFLINE_VARIABLE, value)
    assert is_offline() is expected


def test_the_network_may_be_used_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OFFLINE_VARIABLE, raising=False)
    assert not is_offline()
