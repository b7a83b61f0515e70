"""GGUF files: every block type of the gguf package, the order of rows, and damaged files."""

from __future__ import annotations

import contextlib
import random
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
from support.damage import changed_bytes
from support.gguf_models import write_gguf
from support.tiny_models import Stepper, reference_logits, reference_model, row

Q = GGMLQuantizationType
PROMPT = [(5 * i * i + i) % 160 for i in range(150)]


def files(path: Path) -> ModelFiles:
    return ModelFiles(kind=ModelKind.GGUF, path=str(path), name="tiny")


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16, Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
def test_logits_equal_those_of_transformers_on_the_dequantised_weights(tmp_path: Path, kind: Any) -> None:
    """So the rows of queries and keys are in the order in which the decoder rotates halves."""
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
    """The converter reorders the rows and biases of Llama, but not those of Qwen."""
    model = reference_model(kind, **settings)
    path = write_gguf(model, tmp_path / "m.gguf", Q.F32, arch=arch)
    logits = Stepper(load_model(files(path), "float32")).step(row(PROMPT, 0, 150, 0))[0]
    expected = reference_logits(model, PROMPT)[-1]
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_table_of_frequencies_equals_the_scaling_that_it_was_made_from(tmp_path: Path) -> None:
    """The scaling is that of Llama 3, as llama.cpp stores it."""
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


def in_parts(directory: Path) -> tuple[Any, list[Path]]:
    model = reference_model()
    write_gguf(model, directory / "m.gguf", Q.F32, tensors_per_part=8)
    parts = sorted(directory.glob("m-*.gguf"))
    assert [part.name for part in parts] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    return model, parts


@pytest.mark.parametrize("given", [0, 1, 2])
def test_all_parts_of_a_model_are_loaded_whichever_is_given(tmp_path: Path, given: int) -> None:
    """The first part has the metadata, and each part has some of the tensors."""
    model, parts = in_parts(tmp_path)
    logits = Stepper(load_model(files(parts[given]), "float32")).step(row(PROMPT, 0, 150, 0))[0]
    expected = reference_logits(model, PROMPT)[-1]
    assert (logits - expected).abs().max() < 1e-3 * expected.abs().max()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """The error names the part, and not the first of its tensors."""
    _, parts = in_parts(tmp_path)
    parts[1].unlink()
    with pytest.raises(ModelSourceError, match="has 3 files, and m-00002-of-00003.gguf cannot be found"):
        load_model(files(parts[0]), "float32")


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    """The metadata shows parts that were renamed or swapped, of another number of parts, or with other tensors."""
    _, parts = in_parts(tmp_path)
    whole = [part.read_bytes() for part in parts]

    def fault(*contents: bytes) -> str:
        for part, content in zip(parts, contents, strict=True):
            part.write_bytes(content)
        with pytest.raises(ModelSourceError) as caught:
            load_model(files(parts[0]), "float32")
        return str(caught.value)

    assert "is part 3 by its metadata, and part 2 by its name" in fault(whole[0], whole[2], whole[1])
    one = write_gguf(reference_model(), tmp_path / "one.gguf", Q.F32).read_bytes()
    assert "m-00003-of-00003.gguf: is no part of a model in several files" in fault(whole[0], whole[1], one)
    fewer = whole[0].replace(
        b"split.tensors.count" + struct.pack("<Ii", 5, 21), b"split.tensors.count" + b"\5\0\0\0\7\0\0\0"
    )
    assert "the parts have 21 tensors, and should have 7" in fault(fewer, whole[1], whole[2])
    odd = whole[1].replace(b"split.count" + struct.pack("<IH", 2, 3), b"split.count" + struct.pack("<I?", 7, True))
    assert "m-00002-of-00003.gguf: split.count must be a whole number" in fault(whole[0], odd, whole[2])
    again = whole[1].replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight")
    assert "m-00002-of-00003.gguf: tensor 'blk.0.attn_q.weight' is there twice" in fault(whole[0], again, whole[2])
    lone = tmp_path / "lone.gguf"
    lone.write_bytes(whole[1])
    with pytest.raises(
        ModelSourceError, match="lone.gguf: is part 2 of 3 by its metadata; its name must end in -00001-of-00003"
    ):
        load_model(files(lone), "float32")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.ones(7, dtype=np.float32), r"rope_freqs\.weight' has shape \(7,\), the model needs \(8,\)"),
        (np.zeros(8, dtype=np.float32), "must hold positive numbers"),
        (np.full(8, np.nan, dtype=np.float32), "must hold positive numbers"),
    ],
)
def test_an_impossible_table_of_frequencies_is_refused(tmp_path: Path, table: Any, message: str) -> None:
    path = write_gguf(reference_model(), tmp_path / "m.gguf", Q.F32, rope_freqs=table)
    with pytest.raises(ModelSourceError, match=message):
        load_model(files(path), "float32")


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path, whole: bytes) -> None:
    """It is there under one name twice, or under two names that mean the same."""
    path = tmp_path / "m.gguf"
    path.write_bytes(whole.replace(b"blk.0.attn_q.weight", b"blk.0.attn_k.weight"))
    with pytest.raises(ModelSourceError, match=r"'blk\.0\.attn_k\.weight' is there twice"):
        load_model(files(path), "float32")
    extra: dict[str, Any] = {"model.norm": np.ones(64, dtype=np.float32)}
    write_gguf(reference_model(), path, Q.F32, **extra)
    with pytest.raises(ModelSourceError, match="two tensors have names that mean the same"):
        load_model(files(path), "float32")


ALL_KINDS = [kind for kind in Q if kind not in (Q.F64, Q.I8, Q.I16, Q.I32, Q.I64)]


def _can_dequantise(kind: GGMLQuantizationType) -> bool:
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except (NotImplementedError, KeyError):
        return False
    return True


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if _can_dequantise(kind)])
def test_every_block_type_of_the_package_is_read(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """Random bytes, read in pieces and with a remainder, give the result that the gguf package gives for the whole."""
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
    """Write a llama file whose only tensor is this one."""
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
    """The cut is in the metadata, in the list of tensors, or in the tensors."""
    path = tmp_path / "cut.gguf"
    for n_bytes in [*range(0, len(whole), 997), len(whole) - 64]:
        path.write_bytes(whole[:n_bytes])
        with pytest.raises(ModelSourceError, match="cut.gguf"):
            load_model(files(path), "float32")


def test_a_damaged_list_of_tensors_is_an_error_of_ours(tmp_path: Path, whole: bytes) -> None:
    """One byte after another is set to 255. Either an error names the cause, or only a letter of a name changes."""
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


def test_a_damaged_file_loads_or_is_an_error_of_ours(tmp_path: Path, whole: bytes) -> None:
    """Lengths, counts, types and names are wrong. The error has one line, and there is no other exception."""
    draw = random.Random(0)
    path = tmp_path / "bad.gguf"
    for _ in range(200):
        path.write_bytes(changed_bytes(whole, draw))
        with contextlib.suppress(ModelSourceError):
            load_model(files(path), "float32")


def test_an_unknown_block_type_names_the_tensor(tmp_path: Path, whole: bytes) -> None:
    """The type is 24, an integer of 8 bits; no weight has it."""
    name = b"token_embd.weight"
    at = whole.index(name) + len(name) + 4 + 16
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:at] + struct.pack("<I", 24) + whole[at + 4 :])
    with pytest.raises(ModelSourceError, match=r"token_embd\.weight.*block type"):
        load_model(files(path), "float32")


def test_an_impossible_alignment_is_a_source_error(tmp_path: Path, whole: bytes) -> None:
    """The loader would divide by zero."""
    path = tmp_path / "m.gguf"
    key = b"general.alignment"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 0)
    (n_pairs,) = struct.unpack_from("<Q", whole, 16)
    path.write_bytes(whole[:16] + struct.pack("<Q", n_pairs + 1) + pair + whole[24:])
    with pytest.raises(ModelSourceError, match="alignment"):
        load_model(files(path), "float32")
