"""Which kernel set is used, which threads it uses, and what is logged if there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from sluiceway.model.kernels import loader
from sluiceway.model.kernels.loader import all_kernels, best_kernels, pool
from support.native import kernel_set


@pytest.fixture(autouse=True)
def forget_what_was_found() -> Iterator[None]:
    best_kernels.cache_clear()
    all_kernels.cache_clear()
    yield
    best_kernels.cache_clear()
    all_kernels.cache_clear()


def test_the_best_set_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any processor runs the last set, `plain`."""
    monkeypatch.delenv("SLUICEWAY_KERNELS", raising=False)
    kernel_set("plain")
    names = [kernels.name for kernels in all_kernels()]
    assert names == [name for name in (b"amx", b"avx512", b"avx2", b"plain") if name in names]
    best = best_kernels()
    assert best is not None and best.name == names[0]


def test_the_environment_names_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may also name `none`: then torch computes alone."""
    kernel_set("plain")
    monkeypatch.setenv("SLUICEWAY_KERNELS", "plain")
    best = best_kernels()
    assert best is not None and best.name == b"plain"
    best_kernels.cache_clear()
    monkeypatch.setenv("SLUICEWAY_KERNELS", "none")
    assert best_kernels() is None


def test_missing_kernels_are_logged_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch computes then."""
    monkeypatch.delenv("SLUICEWAY_KERNELS", raising=False)
    monkeypatch.setattr(loader, "LIBRARY", tmp_path / "kernels.so")
    with capture_logs() as logs:
        assert best_kernels() is None
        assert best_kernels() is None
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "was not built" in logs[0]["cause"]


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structs may be different."""
    kernel_set("plain")
    all_kernels.cache_clear()
    monkeypatch.setattr(loader, "digest", lambda: "another")
    with pytest.raises(OSError, match="other sources"):
        all_kernels()


def test_an_unavailable_kernel_set_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is misspelt, or the set is for another processor."""
    kernel_set("plain")
    monkeypatch.setenv("SLUICEWAY_KERNELS", "neon")
    with capture_logs() as logs:
        assert best_kernels() is None
    assert logs[0]["asked_for"] == "neon"


def test_a_process_has_one_openmp_runtime() -> None:
    """It is torch's own. The test looks in a new process, after torch and the kernels have computed."""
    kernel_set("plain")
    code = (
        "import torch; from sluiceway.model.kernels.loader import all_kernels, pool; all_kernels(); p = pool(2);"
        "torch.ones(1000, 1000) @ torch.ones(1000, 1000);"
        "print(p.n_threads, *{line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split('/')[-1]})"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("only Linux lists what a process has mapped")
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    n_threads, *runtimes = printed.stdout.split()
    assert n_threads == "2"
    assert len(runtimes) == 1 and "torch" in runtimes[0]


def test_without_a_runtime_the_caller_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds if the library is no OpenMP runtime."""
    for candidates in ([], [Path("/nowhere/libgomp.so")], [Path(loader.__file__)]):
        loader.gomp_parallel.cache_clear()
        monkeypatch.setattr(loader, "openmp_candidates", lambda found=candidates: found)
        lent = pool(4)
        assert (lent.parallel, lent.n_threads) == (None, 1)
    loader.gomp_parallel.cache_clear()


def test_without_a_list_of_mapped_files_the_caller_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a system is macOS."""

    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert loader.openmp_candidates() == []
