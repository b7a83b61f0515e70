"""Which tensors a model needs, and the errors for tensors that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import ModelSourceError
from sluiceway.model.checkpoint import check_shapes, expected_shapes
from sluiceway.model.config import ModelConfig
from support.tiny_config import tiny_config


def config(**changes: Any) -> ModelConfig:
    return tiny_config(n_layers=2, **changes)


def test_a_plain_model_needs_nine_tensors_a_layer_and_three_more() -> None:
    """Outputs come before inputs. The head size is a setting of its own."""
    shapes = expected_shapes(config())
    assert len(shapes) == 2 * 9 + 3
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (32, 64)
    assert shapes["model.layers.1.self_attn.v_proj.weight"] == (16, 64)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (64, 32)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (64, 96)
    assert shapes["lm_head.weight"] == (100, 64)


def test_settings_add_and_remove_tensors() -> None:
    """The settings are biases of each kind, norms of heads, and the tied head."""
    plain = expected_shapes(config()).keys()
    added = expected_shapes(config(has_qkv_bias=True, has_mlp_bias=True, has_qk_norm=True)).keys() - plain
    parts = {name.removeprefix("model.layers.0.") for name in added if ".0." in name}
    assert parts == {
        *(f"self_attn.{x}_proj.bias" for x in "qkv"),
        *(f"mlp.{x}_proj.bias" for x in ("gate", "up", "down")),
        *(f"self_attn.{x}_norm.weight" for x in "qk"),
    }
    assert "model.layers.1.self_attn.o_proj.bias" in expected_shapes(config(has_out_bias=True))
    assert plain - expected_shapes(config(is_tied=True)).keys() == {"lm_head.weight"}


def test_a_right_file_passes() -> None:
    """It may also have a head that repeats the embedding, and the frequencies that old files have."""
    shapes = expected_shapes(config(is_tied=True))
    extra = {"lm_head.weight": (100, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": (4,)}
    check_shapes(shapes, shapes | extra, "file")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "file: has no tensor 'a'"),
        ({"a": (2, 3)}, r"'a' has shape \(2, 3\), the model needs \(3, 2\)"),
        ({"a": (3, 2), "b": (1,)}, "'b' that the model has no use for"),
    ],
)
def test_a_wrong_tensor_is_named(found: dict[str, tuple[int, ...]], message: str) -> None:
    """A tensor is missing, has a wrong shape, or is not expected."""
    with pytest.raises(ModelSourceError, match=message):
        check_shapes({"a": (3, 2)}, found, "file")
