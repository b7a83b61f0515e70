"""GGUF files: every block type of the package, the order of rows, and files that are damaged anywhere."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError, SluicewayError
from sluiceway.model.gguf import GgufCheckpoint
from sluiceway.model.load import load_model
from support.gguf_models import write_gguf
from support.tiny_models import Stepper, reference_logits, reference_model, row

Q = GGMLQuantizationType
PROMPT = [(5 * i * i + i) % 160 for i in range(150)]


def files(path: Path) -> ModelFiles:
    return ModelFiles(kind=ModelKind.GGUF, path=str(path), name="tiny")


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
def test_logits_equal_those_of_transformers_on_the_dequantised_weights(tmp_path: Path, kind: Any) -> None:
    """So the rows of queries and keys are back in the order in which halves are rotated."""
    model = reference_model()
    path = write_gguf(model, tmp_path / "m.gguf", kind)
    logits = Stepper(load_model(files(path), "float32")).step(row(PROMPT, 0, 150, 0))[0]
    expected = reference_logits(model, PROMPT)[-1]
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()


@pytest.mark.parametrize(
    ("kind", "arch", "settings"),
    [
        ("Llama", "llama", {"tie_word_embeddings": True}),
        ("Llama", "llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
        ("Qwen2", "qwen2", {}),
        ("Qwen3", "qwen3", {"head_dim": 16}),
    ],
)
def test_biases_norms_and_tied_heads_are_found_in_the_file(
    tmp_path: Path, kind: str, arch: str, settings: dict[str, Any]
) -> None:
    """Qwen's rows were not reordered, Llama's were, biases too."""
    model = reference_model(kind, **settings)
    path = write_gguf(model, tmp_path / "m.gguf", Q.F32, arch=arch)
    logits = Stepper(load_model(files(path), "float32")).step(row(PROMPT, 0, 150, 0))[0]
    expected = reference_logits(model, PROMPT)[-1]
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_table_of_frequencies_equals_the_scaling_that_it_was_made_from(tmp_path: Path) -> None:
    """Llama 3 as llama.cpp stores it."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = reference_model(rope_scaling=scaling)
    plain = 1.0 / 10_000.0 ** (torch.arange(0, 16, 2) / 16)
    divisors = (plain / model.model.rotary_emb.inv_freq).numpy()
    path = write_gguf(model, tmp_path / "m.gguf", Q.F32, rope_freqs=divisors)
    logits = Stepper(load_model(files(path), "float32")).step(row(PROMPT, 0, 150, 0))[0]
    expected = reference_logits(model, PROMPT)[-1]
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()


ALL_KINDS = [kind for kind in Q if kind not in (Q.F64, Q.I8, Q.I16, Q.I32, Q.I64)]


def _can_dequantise(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except (NotImplementedError, KeyError):
        return False
    return True


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if _can_dequantise(kind)])
def test_every_block_type_of_the_package_is_read(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """Random bytes, in pieces and with a remainder, equal the package's result for the whole."""
    block_len, block_bytes = GGML_QUANT_SIZES[kind]
    n_blocks = 5 * (16 * 4096 // block_bytes) // 4
    # Bytes under 0x30 in every place keep floating-point scales finite.
    raw = np.random.default_rng(0).integers(0, 0x30, (1, n_blocks * block_bytes), dtype=np.uint8)
    path = tmp_path / "m.gguf"
    model = reference_model(num_hidden_layers=1)
    write_with_embedding(model, path, raw, kind)
    checkpoint = GgufCheckpoint(str(path))
    out = torch.empty(checkpoint.shapes["model.embed_tokens.weight"])
    checkpoint.read_into("model.embed_tokens.weight", out)
    expected = dequantize(raw, kind)
    assert out.shape == (1, n_blocks * block_len)
    np.testing.assert_array_equal(out.numpy(), expected)


def write_with_embedding(model: Any, path: Path, raw: Any, kind: GGMLQuantizationType) -> None:
    """A llama file whose only tensor is this one."""
    writer = GGUFWriter(str(path), "llama")
    for add, value in (
        (writer.add_block_count, 1),
        (writer.add_context_length, 64),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 64),
        (writer.add_head_count, 4),
        (writer.add_layer_norm_rms_eps, 1e-5),
    ):
        add(value)
    data = raw.view({Q.F32: np.float32, Q.F16: np.float16}.get(kind, np.uint8))
    writer.add_tensor("token_embd.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(reference_model(num_hidden_layers=1), path, Q.Q8_0).read_bytes()


def test_a_file_that_is_cut_short_anywhere_is_a_source_error(tmp_path: Path, whole: bytes) -> None:
    """In the metadata, in the list of tensors, in the tensors."""
    path = tmp_path / "cut.gguf"
    for n_bytes in [*range(0, len(whole), 997), len(whole) - 64]:
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(ModelSourceError, match="cut.gguf"):
            load_model(files(path), "float32")


def test_a_damaged_list_of_tensors_is_an_error_of_ours(tmp_path: Path, whole: bytes) -> None:
    """One byte after another set to 255: some error that names the cause, or a change in a name's letters."""
    begin = whole.index(b"token_embd.weight") - 8
    path = tmp_path / "bad.gguf"
    n_refused = 0
    for position in range(begin, begin + 120):
        path.write_bytes(whole[:position] + b"\xff" + whole[position + 1 :])
        try:
            load_model(files(path), "float32")
        except SluicewayError:
            n_refused += 1
    assert n_refused > 100


def test_an_unknown_block_type_names_the_tensor(tmp_path: Path, whole: bytes) -> None:
    """24 is a whole number of 8 bits, which no weight is."""
    name = b"token_embd.weight"
    at = whole.index(name) + len(name) + 4 + 16
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", 24) + whole[at + 4 :])
    with pytest.raises(ModelSourceError, match=r"token_embd\.weight.*block type"):
        load_model(files(path), "float32")


def test_an_alignment_that_is_none_is_a_source_error(tmp_path: Path, whole: bytes) -> None:
    """Zero would divide."""
    path = tmp_path / "m.gguf"
    key = b"general.alignment"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 0)
    (n_pairs,) = struct.unpack_from("<Q", whole, 16)
    path.write_bytes(whole[:16] + struct.pack("<Q", n_pairs + 1) + pair + whole[24:])
    with pytest.raises(ModelSourceError, match="alignment"):
        load_model(files(path), "float32")
