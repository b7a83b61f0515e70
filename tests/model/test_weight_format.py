"""The weight format follows from the requested dtype, the hardware, and whether the kernels were built."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sluiceway.errors import ConfigError
from sluiceway.model import weight_format
from sluiceway.model.kernels.binding import Kernels
from sluiceway.model.weight_format import NativeFormat, TorchFormat, choose_format, has_native_bfloat16, resolve_dtype
from support.tiny_config import tiny_config

CPU = torch.device("cpu")
CONFIG = tiny_config()


@pytest.fixture
def has_kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    kernels = Kernels()
    monkeypatch.setattr(weight_format, "best_kernels", lambda: kernels)
    return kernels


@pytest.fixture
def has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_format, "best_kernels", lambda: None)


def test_auto_is_bfloat16_where_the_hardware_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU always has it, and a CPU has it with certain instructions. An explicit dtype is not changed."""
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(weight_format, "has_native_bfloat16", lambda native=native: native)
        assert resolve_dtype("auto", CPU) == expected
        assert resolve_dtype("float32", CPU) == torch.float32
        assert resolve_dtype("bfloat16", CPU) == torch.bfloat16
        assert resolve_dtype("int8", CPU) == torch.int8


@pytest.mark.parametrize(("flag", "expected"), [("avx512_bf16", True), ("amx_bf16", True), ("avx2", False)])
def test_native_bfloat16_depends_on_the_instruction_set(
    monkeypatch: pytest.MonkeyPatch, flag: str, expected: bool
) -> None:
    """Each of the two instruction sets is enough."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {flag: True})
    assert has_native_bfloat16() is expected


@pytest.mark.usefixtures("has_kernels")
def test_float32_is_computed_by_torch_even_if_there_are_kernels() -> None:
    """Torch's float32 products give the answers of transformers."""
    assert choose_format("float32", CONFIG) == TorchFormat(torch.float32, CPU)


def test_bfloat16_and_int8_are_native_where_there_are_kernels(has_kernels: Kernels) -> None:
    """The device is a CPU."""
    assert choose_format("bfloat16", CONFIG) == NativeFormat(has_kernels, is_int8=False)
    assert choose_format("int8", CONFIG) == NativeFormat(has_kernels, is_int8=True)


@pytest.mark.usefixtures("has_kernels")
def test_a_gpu_computes_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are for the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_format("auto", CONFIG) == TorchFormat(torch.bfloat16, torch.device("cuda"))
    with pytest.raises(ConfigError, match="dtype"):
        choose_format("int8", CONFIG)


@pytest.mark.usefixtures("has_no_kernels")
def test_torch_computes_if_no_kernels_were_built() -> None:
    """int8 is refused, since the user would not expect another format."""
    assert choose_format("bfloat16", CONFIG) == TorchFormat(torch.bfloat16, CPU)
    with pytest.raises(ConfigError, match="dtype"):
        choose_format("int8", CONFIG)


@pytest.mark.usefixtures("has_kernels")
def test_heads_too_wide_for_the_kernels_are_computed_in_torch() -> None:
    """The kernels take at most 256."""
    assert isinstance(choose_format("bfloat16", replace(CONFIG, head_dim=256)), NativeFormat)
    assert choose_format("bfloat16", replace(CONFIG, head_dim=258)) == TorchFormat(torch.bfloat16, CPU)


def test_native_formats_share_a_tied_embedding_with_the_head_in_bfloat16_only(has_kernels: Kernels) -> None:
    """With an int8 head, the embedding is a second matrix in bfloat16."""
    table = torch.ones(4, 2)
    assert NativeFormat(has_kernels, is_int8=False).embedding(table, is_tied=True) is None
    for kept in (
        NativeFormat(has_kernels, is_int8=False).embedding(table, is_tied=False),
        NativeFormat(has_kernels, is_int8=True).embedding(table, is_tied=True),
    ):
        assert kept is not None and torch.equal(kept, table.to(torch.bfloat16))
    assert TorchFormat(torch.float32, CPU).embedding(table, is_tied=True) is table
