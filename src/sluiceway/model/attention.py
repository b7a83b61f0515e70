"""Attention of a mixed batch over the paged cache, with results that do not depend on the batch.

The queries of a step come from many rows: one from each row that decodes, hundreds from a row that prefills. Each row
is cut into pieces at the multiples of `SEGMENT_TOKENS` positions. All queries of a piece are computed with the keys up
to the end of their segment; later keys are masked. So the number of keys of a query depends on its position only, and
the order of its sums depends neither on its chunk nor on other rows. Pieces with the same numbers of queries and keys
form a `Group`, which is computed in one call.

The number of query vectors in a matrix product changes the order of sums too, since kernels treat a remainder
differently. So in float32 on the CPU, where no bit may change, a piece is cut into tiles of a fixed number of vectors.
In bfloat16 a tile is the whole piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from sluiceway.config import BLOCK_TOKENS
from sluiceway.model.config import ModelConfig
from sluiceway.model.kv import KVCache

SEGMENT_TOKENS = 128
"""With a larger value, more masked keys are computed for nothing. With a smaller one, rows of different lengths need
more calls."""

_TILE_VECTORS = 6
"""The number of query vectors of a tile in float32 (or a multiple of it): whole tiles of the kernels of MKL, with AVX2
(6 rows) and with AVX-512. With 8, 16 or 32 vectors, bits depend on the place in the tile under AVX2. 6 vectors take 1.5
times as long as one large tile at 128 keys, and 3 vectors twice as long."""

_QUERY_MULTIPLE = 16
"""Without tiles, pieces of more than one token are padded to a multiple of this, so that more of them share a call."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one row in the flat batch: the first one is `tokens[first]`, at position `start`."""

    first: int
    start: int
    n_tokens: int
    block_ids: Sequence[int]
    """Cover positions 0 to `start + n_tokens - 1`."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a span that lies in one segment."""

    first: int
    start: int
    n_tokens: int
    block_ids: Sequence[int]

    @property
    def n_keys(self) -> int:
        return (self.start // SEGMENT_TOKENS + 1) * SEGMENT_TOKENS


@dataclass(frozen=True, slots=True)
class Tiling:
    """The layout of the queries of a piece: tiles of `n_queries` tokens, in `n_vectors` vectors for each key head."""

    n_tiles: int
    n_queries: int
    n_vectors: int


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces that are computed in one call, each over `n_keys` keys: many of one tile, or one of many tiles."""

    n_pieces: int
    n_keys: int
    tiling: Tiling
    tokens: Tensor
    """(pieces * tiles * queries): the token of each query. A piece is padded with its last token."""
    runs: Tensor
    """(pieces * n_kv_heads * blocks): the cached blocks of each key head of each piece; see `KVCache`."""
    mask: Tensor
    """Added to the scores: (pieces * tiles, 1, vectors or 1, n_keys), zero or minus infinity."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All queries of a step. `order[t]` is the place of token t in the joined results of the groups."""

    groups: tuple[Group, ...]
    order: Tensor


def plan_attention(
    spans: Iterable[Span], config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """The same plan serves every layer of the step."""
    is_tiled = dtype == torch.float32 and device.type == "cpu"
    pieces_of: defaultdict[tuple[Tiling, int, int], list[_Piece]] = defaultdict(list)
    for piece in (piece for span in spans for piece in _cut(span)):
        tiling = tiling_of(piece.n_tokens, config.group_size, is_tiled)
        # A piece of many tiles has a call of its own, since only then its tiles share keys without a copy.
        own_call = piece.first if tiling.n_tiles > 1 else -1
        pieces_of[tiling, piece.n_keys, own_call].append(piece)
    groups = []
    outputs: list[IntArray] = []
    tokens: list[IntArray] = []
    n_before = 0
    for (tiling, _, _), pieces in pieces_of.items():
        groups.append(_group(pieces, tiling, config, dtype, device))
        for piece in pieces:
            tokens.append(np.arange(piece.first, piece.first + piece.n_tokens))
            outputs.append(np.arange(n_before, n_before + piece.n_tokens))
            n_before += tiling.n_tiles * tiling.n_queries
    order = np.concatenate(outputs)[np.argsort(np.concatenate(tokens))]
    return AttentionPlan(tuple(groups), torch.from_numpy(order).to(device))


def attend(queries: Tensor, cache: KVCache, layer: int, plan: AttentionPlan) -> Tensor:
    """Attention output (tokens, n_heads * head_dim) for queries (tokens, n_heads, head_dim).

    The keys and values of the step's own tokens are in the cache already.
    """
    outputs = [_attend_group(queries, cache, layer, group) for group in plan.groups]
    flat = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return flat.index_select(0, plan.order)


def _attend_group(queries: Tensor, cache: KVCache, layer: int, group: Group) -> Tensor:
    _, n_heads, head_dim = queries.shape
    n_kv_heads = group.runs.shape[0] * BLOCK_TOKENS // (group.n_pieces * group.n_keys)
    tiling, group_size = group.tiling, n_heads // n_kv_heads
    n_batch = group.n_pieces * tiling.n_tiles
    keys, values = (
        copies.view(group.n_pieces, n_kv_heads, group.n_keys, head_dim).expand(n_batch, -1, -1, -1)
        for copies in cache.gather(layer, group.runs)
    )
    # Queries that share a key head are next to each other, so that one product reads the keys once.
    by_head = queries.index_select(0, group.tokens).view(n_batch, tiling.n_queries, n_kv_heads, group_size, head_dim)
    stacked = by_head.transpose(1, 2).flatten(2, 3)
    n_used = tiling.n_queries * group_size
    if n_used < tiling.n_vectors:
        stacked = functional.pad(stacked, (0, 0, 0, tiling.n_vectors - n_used))
    output = functional.scaled_dot_product_attention(stacked, keys, values, attn_mask=group.mask)
    by_vector = output[:, :, :n_used].reshape(n_batch, n_kv_heads, tiling.n_queries, group_size * head_dim)
    return by_vector.transpose(1, 2).reshape(n_batch * tiling.n_queries, n_heads * head_dim)


def _cut(span: Span) -> Iterable[_Piece]:
    position, end = span.start, span.start + span.n_tokens
    while position < end:
        stop = min(end, (position // SEGMENT_TOKENS + 1) * SEGMENT_TOKENS)
        yield _Piece(span.first + position - span.start, position, stop - position, span.block_ids)
        position = stop


def tiling_of(n_tokens: int, group_size: int, is_tiled: bool) -> Tiling:
    """The layout for a piece of `n_tokens` tokens, if `group_size` query heads share a key head."""
    if is_tiled:
        n_vectors = -(-group_size // _TILE_VECTORS) * _TILE_VECTORS
        n_queries = n_vectors // group_size
        return Tiling(-(-n_tokens // n_queries), n_queries, n_vectors)
    n_queries = 1 if n_tokens == 1 else -(-n_tokens // _QUERY_MULTIPLE) * _QUERY_MULTIPLE
    return Tiling(1, n_queries, n_queries * group_size)


def _group(
    pieces: Sequence[_Piece], tiling: Tiling, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Group:
    n_keys = pieces[0].n_keys
    firsts = np.array([piece.first for piece in pieces])
    starts = np.array([piece.start for piece in pieces])
    counts = np.array([piece.n_tokens for piece in pieces])
    offsets = np.minimum(np.arange(tiling.n_tiles * tiling.n_queries), counts[:, None] - 1)
    positions = (starts[:, None] + offsets).reshape(-1, tiling.n_queries)
    mask = _mask(_by_vector(positions, tiling, config.group_size), n_keys, config.sliding_window)
    return Group(
        n_pieces=len(pieces),
        n_keys=n_keys,
        tiling=tiling,
        tokens=torch.from_numpy((firsts[:, None] + offsets).reshape(-1)).to(device),
        runs=torch.from_numpy(_runs(pieces, n_keys, config.n_kv_heads)).to(device),
        mask=torch.from_numpy(mask[:, None]).to(device, dtype),
    )


def _by_vector(positions: IntArray, tiling: Tiling, group_size: int) -> IntArray:
    """Positions (tiles, queries) for each vector of a tile. Padding has the position of the last query."""
    if tiling.n_queries == 1:
        return positions
    vectors = np.minimum(np.arange(tiling.n_vectors) // group_size, tiling.n_queries - 1)
    return positions[:, vectors]


def _mask(positions: IntArray, n_keys: int, window: int | None) -> npt.NDArray[np.float32]:
    """(tiles, vectors, n_keys) for the positions of vectors (tiles, vectors)."""
    keys = np.arange(n_keys)
    is_hidden = keys > positions[..., None]
    if window is not None:
        is_hidden |= keys <= positions[..., None] - window
    return np.where(is_hidden, np.float32(-np.inf), np.float32(0.0))


def _runs(pieces: Sequence[_Piece], n_keys: int, n_kv_heads: int) -> IntArray:
    """Blocks beyond the tokens of a piece are masked, so any block may be read there: the first one of the piece."""
    n_blocks = n_keys // BLOCK_TOKENS
    blocks = np.empty((len(pieces), n_blocks), dtype=np.int64)
    for row, piece in zip(blocks, pieces, strict=True):
        n_held = min(n_blocks, -(-(piece.start + piece.n_tokens) // BLOCK_TOKENS))
        row[:n_held] = piece.block_ids[:n_held]
        row[n_held:] = row[0]
    return (blocks[:, None, :] * n_kv_heads + np.arange(n_kv_heads)[:, None]).reshape(-1)
