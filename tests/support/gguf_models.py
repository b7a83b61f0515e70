"""Writes a small transformers model as the GGUF file that a converter would make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    model: Any,
    path: Path,
    quantization: GGMLQuantizationType,
    *,
    arch: str = "llama",
    tensors_per_part: int = 0,
    **extra: npt.NDArray[np.float32],
) -> Path:
    """Also rounds the model's own matrices to what the file holds, so that both compute the same.

    With `tensors_per_part` the model has several files, whose names the writer derives from `path`.
    """
    config = model.config
    writer = GGUFWriter(str(path), arch, split_max_tensors=tensors_per_part)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(1)
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    for name, parameter in model.named_parameters():
        values = parameter.detach().numpy()
        kind = quantization if values.ndim == 2 else GGMLQuantizationType.F32
        packed = quantize(values, kind)
        values[...] = dequantize(packed, kind)
        stored = _pairs(packed, name, config) if arch == "llama" else packed
        writer.add_tensor(_file_name(name), stored, raw_dtype=kind)
    for name, table in extra.items():
        writer.add_tensor(f"{name}.weight", table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _pairs(rows: npt.NDArray[Any], name: str, config: Any) -> npt.NDArray[Any]:
    """Reorders the rows for llama.cpp's rotation, which pairs neighbouring rows."""
    if ".q_proj" in name:
        n_heads = config.num_attention_heads
    elif ".k_proj" in name:
        n_heads = config.num_key_value_heads
    else:
        return rows
    size = len(rows) // n_heads
    order = [head * size + i + half * size // 2 for head in range(n_heads) for i in range(size // 2) for half in (0, 1)]
    return rows[order]


def _file_name(name: str) -> str:
    stem, suffix = name.rsplit(".", 1)
    if stem in _TOP:
        return f"{_TOP[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{suffix}"
