"""`Architecture`: what is particular to one architecture. Everything else of a model is in its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluiceway.model.config import ModelConfig
    from sluiceway.model.decoder import TorchDecoder
    from sluiceway.model.linear import Linear
    from sluiceway.model.rope import Rope
    from sluiceway.model.weights import DecoderWeights

COMMON_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Describes one architecture to the readers of model files and to the loader.

    To add an architecture, define one in a file of its own, and add it to `registry.ARCHITECTURES`.
    """

    name: str
    """Its name in `architectures` of config.json."""
    model_type: str
    """Its name in `model_type` of config.json."""
    defaults: Mapping[str, Any]
    """The keys of config.json that have a meaning for it, with the defaults of transformers' configuration class.

    Some keys belong to a feature, and a file may use the feature only if the key is here: `attention_bias`, `mlp_bias`,
    `sliding_window`, `use_sliding_window`, `max_window_layers` and `layer_types`.
    """
    has_qkv_bias: bool = False
    """True when the projections to queries, keys and values always have a bias."""
    has_qk_norm: bool = False
    """True when each head of the queries and keys is normalised."""
    gguf_name: str | None = None
    """Its name in `general.architecture` of a GGUF file; None if GGUF files of it are not served."""
    is_paired_in_gguf: bool = False
    """True when GGUF files hold the rows of queries and keys in the order of a rotation by adjacent pairs."""
    make_decoder: Callable[[ModelConfig, DecoderWeights[Linear], Rope], TorchDecoder] | None = None
    """Makes its decoder in torch. None: it is the common decoder, which the native kernels compute too."""
