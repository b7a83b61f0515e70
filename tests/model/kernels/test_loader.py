"""Which kernels are taken, whose threads they borrow, and what is said where there are none."""

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
    """And any processor runs the last one, plain."""
    monkeypatch.delenv("SLUICEWAY_KERNELS", raising=False)
    kernel_set("plain")
    names = [kernels.name for kernels in all_kernels()]
    assert names == [name for name in (b"amx", b"avx512", b"avx2", b"plain") if name in names]
    best = best_kernels()
    assert best is not None and best.name == names[0]


def test_the_environment_names_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or none, for torch alone."""
    kernel_set("plain")
    monkeypatch.setenv("SLUICEWAY_KERNELS", "plain")
    best = best_kernels()
    assert best is not None and best.name == b"plain"
    best_kernels.cache_clear()
    monkeypatch.setenv("SLUICEWAY_KERNELS", "none")
    assert best_kernels() is None


def test_what_was_not_built_is_told_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Torch serves."""
    monkeypatch.delenv("SLUICEWAY_KERNELS", raising=False)
    monkeypatch.setattr(loader, "LIBRARY", tmp_path / "kernels.so")
    with capture_logs() as logs:
        assert best_kernels() is None
        assert best_kernels() is None
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "was not built" in logs[0]["cause"]


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structs may be others."""
    kernel_set("plain")
    all_kernels.cache_clear()
    monkeypatch.setattr(loader, "digest", lambda: "another")
    with pytest.raises(OSError, match="other sources"):
        all_kernels()


def test_a_set_that_is_not_here_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt name, or another processor's."""
    kernel_set("plain")
    monkeypatch.setenv("SLUICEWAY_KERNELS", "neon")
    with capture_logs() as logs:
        assert best_kernels() is None
    assert logs[0]["asked_for"] == "neon"


def test_a_process_has_one_openmp_runtime() -> None:
    """Torch's own: asked in a fresh process, after a computation in both."""
    kernel_set("plain")
    code = (
        "import torch; from sluiceway.model.kernels.loader import all_kernels, pool; all_kernels(); p = pool(2);"
        "torch.ones(1000, 1000) @ torch.ones(1000, 1000);"
        "print(p.n_threads, *{line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line.split('/')[-1]})"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("what a process has mapped is told on Linux")
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    n_threads, *runtimes = printed.stdout.split()
    assert n_threads == "2"
    assert len(runtimes) == 1 and "torch" in runtimes[0]


def test_without_a_runtime_the_caller_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or with one that is none of the kind."""
    for candidates in ([], [Path("/nowhere/libgomp.so")], [Path(loader.__file__)]):
        loader.gomp_parallel.cache_clear()
        monkeypatch.setattr(loader, "openmp_candidates", lambda found=candidates: found)
        lent = pool(4)
        assert (lent.parallel, lent.n_threads) == (None, 1)
    loader.gomp_parallel.cache_clear()


def test_a_system_that_does_not_tell_what_is_mapped_lends_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As macOS."""

    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert loader.openmp_candidates() == []
