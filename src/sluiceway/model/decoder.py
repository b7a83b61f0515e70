"""The decoder that all served architectures share, in torch: embedding, layers of attention and SwiGLU, head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from sluiceway.model.attention import attend
from sluiceway.model.batch import Batch
from sluiceway.model.config import ModelConfig
from sluiceway.model.kv import KVCache
from sluiceway.model.layers import rms_norm, swiglu
from sluiceway.model.linear import Linear
from sluiceway.model.rope import Rope, rotate
from sluiceway.model.weights import DecoderWeights, LayerWeights


class TorchDecoder:
    """Computes the decoder in torch. It has weights and no state: a pass depends on the batch and on the cache."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights[Linear], rope: Rope) -> None:
        if weights.embedding is None:
            raise ValueError("torch looks rows up in an embedding of its own")
        self._config = config
        self._weights = weights
        self._embedding = weights.embedding
        self._rope = rope

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        """Compute logits (sampled tokens, vocab_size), and write the keys and values of the batch into the cache."""
        weights = self._weights
        angles = self._rope.angles(batch.positions)
        cache.clear(batch.fresh_runs)
        x = functional.embedding(batch.token_ids, self._embedding)
        for index, layer in enumerate(weights.layers):
            x = x + self._attention(index, layer, self._norm(x, layer.attention_norm), angles, batch, cache)
            x = x + layer.down(swiglu(layer.gate_up(self._norm(x, layer.mlp_norm))))
        return weights.head(self._norm(x.index_select(0, batch.sampled), weights.norm))

    def _attention(
        self,
        index: int,
        layer: LayerWeights[Linear],
        x: Tensor,
        angles: tuple[Tensor, Tensor],
        batch: Batch,
        cache: KVCache,
    ) -> Tensor:
        config = self._config
        n_rotated = config.n_heads + config.n_kv_heads
        heads = layer.qkv(x).view(x.shape[0], n_rotated + config.n_kv_heads, config.head_dim)
        rotated = rotate(self._normed_heads(layer, heads[:, :n_rotated]), *angles)
        queries, keys = rotated[:, : config.n_heads], rotated[:, config.n_heads :]
        cache.write(index, batch.slots, keys, heads[:, n_rotated:])
        return layer.out(attend(queries, cache, index, batch.attention))

    def _normed_heads(self, layer: LayerWeights[Linear], heads: Tensor) -> Tensor:
        """Queries and keys (tokens, heads, head_dim). Each head is normalised if the model does that."""
        if layer.q_norm is None or layer.k_norm is None:
            return heads
        queries, keys = heads[:, : self._config.n_heads], heads[:, self._config.n_heads :]
        return torch.cat((self._norm(queries, layer.q_norm), self._norm(keys, layer.k_norm)), dim=1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self._config.rms_eps)
