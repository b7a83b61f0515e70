"""Describing where a measurement was made, and what the machine can do."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import sluiceway
from sluiceway.config import ModelFiles, ModelKind
from sluiceway_lab.load import machine
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.machine import (
    FloorRequest,
    describe_host,
    floor_here,
    load,
    measure_floor,
    sources,
    versions,
    weights_of,
)
from sluiceway_lab.load.record import Weights

SHAPES = {"embedding": (10, 4), "layer": (4, 4), "norm": (4,)}


def git(directory: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    run = subprocess.run(["git", *identity, "-C", str(directory), *words], check=True, capture_output=True, text=True)
    return run.stdout.strip()


def test_host_is_described() -> None:
    host = describe_host(0.25)
    assert (host.load_before, host.load_after) == (0.25, load())
    assert host.cores > 0 and host.memory_bytes > 1 << 20 and host.name and host.platform


def test_processor_is_named() -> None:
    assert machine.cpu_name(Path("/no/such/file")) == platform.processor()


def test_versions_of_installed_packages_are_listed() -> None:
    found = versions()
    assert found["sluiceway"] == sluiceway.__version__
    assert found["python"] == sys.version.split()[0] and "msgspec" in found


def test_sources_are_those_of_the_package(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert sources(package) == (None, None), "nothing is committed"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    sha = git(tmp_path, "rev-parse", "HEAD")
    assert sources(package) == (sha, False)
    (package / "__init__.py").write_text("changed = True\n")
    assert sources(package) == (sha, True)


def test_sources_are_unknown_when_the_package_is_only_installed(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    assert sources(tmp_path) == (None, None)


def test_program_that_is_not_there_says_nothing() -> None:
    assert machine.first_line(["no-such-program-at-all"]) is None
    assert machine.first_line([sys.executable, "-c", "print('x'); raise SystemExit(1)"]) is None
    assert machine.first_line([sys.executable, "-c", "print('x'); print('y')"]) == "x"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the measurement wrong, but quick."""
    monkeypatch.setattr(machine, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(machine, "_MATRIX", 64)
    monkeypatch.setattr(machine, "_TRIES", 1)


def test_tied_embedding_is_read_as_the_head() -> None:
    weights = weights_of(SHAPES, embedding="embedding", is_tied=True, dtype="bfloat16", width=2)
    assert (weights.parameters, weights.head_parameters, weights.step_bytes) == (60, 40, 120)


def test_untied_embedding_is_read_a_row_at_a_time() -> None:
    shapes = SHAPES | {"head": (10, 4)}
    weights = weights_of(shapes, embedding="embedding", is_tied=False, dtype="float32", width=4)
    assert (weights.parameters, weights.head_parameters, weights.step_bytes) == (60, 40, 240)


@pytest.mark.usefixtures("small")
def test_floor_is_measured_without_a_model() -> None:
    ground = floor_here(FloorRequest(threads=1))
    assert ground.weights is None and ground.floor is not None and ground.floor.threads == 1
    assert ground.floor.memory_gb_per_s > 0
    assert ground.floor.bfloat16_gflop_per_s > 0 and ground.floor.float32_gflop_per_s > 0


def test_fault_of_the_process_is_a_sentence(tmp_path: Path) -> None:
    files = ModelFiles(kind=ModelKind.GGUF, path=str(tmp_path / "none.gguf"), name="none")
    with pytest.raises(LoadError, match=r"the machine's floor cannot be measured: .*none\.gguf"):
        measure_floor(FloorRequest(files=files))


@pytest.mark.usefixtures("small")
def test_weights_are_those_of_the_models_files(tmp_path: Path) -> None:
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file({"model.embed_tokens.weight": np.zeros((160, 64), np.float32)}, tmp_path / "model.safetensors")
    files = ModelFiles(kind=ModelKind.DIRECTORY, path=str(tmp_path), name="tiny")
    weights = floor_here(FloorRequest(threads=1, dtype="float32", files=files)).weights
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 96 * 64 + 2 * 64
    parameters = 160 * 64 + 2 * layer + 64
    assert weights == Weights(
        dtype="float32", parameters=parameters, head_parameters=160 * 64, step_bytes=4 * parameters
    )
