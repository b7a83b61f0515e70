"""Attention of a mixed batch over the paged cache: what is computed together, and why results do not depend on it.

A step's queries come from many rows: one each from rows that decode, hundreds from one that prefills. Every row is cut
at the multiples of `SEGMENT_TOKENS` positions. All queries of one piece see the keys of the positions up to the end of
their segment, the later ones masked. So the number of keys that a query is computed with is a function of its own
position, and the order in which its sums are added depends neither on the chunk in which it came nor on other rows.
Pieces with the same numbers of queries and keys form one `Group`, one call.
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
"""Larger: more masked keys are computed in vain. Smaller: rows of mixed lengths fall into more calls."""

_MIN_STACKED_QUERIES = 3
"""Query vectors on one key head in one call, at least: with fewer the product takes another kernel, with other sums."""

_QUERY_MULTIPLE = 16
"""Pieces with more than one token are filled up to a multiple of this many, so that more of them share a call and no
remainder of the kernel's own query blocks is too small."""

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one row in the flat batch: the first is `tokens[first]`, at position `start`."""

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
class Group:
    """Pieces that are computed in one call: `n_pieces`, each filled up to `n_queries` tokens, over `n_keys` keys."""

    n_pieces: int
    n_queries: int
    n_keys: int
    tokens: Tensor
    """(n_pieces * n_queries): the token of each query; a piece is filled up by repeating its last token."""
    runs: Tensor
    """(n_pieces * n_kv_heads * blocks): the cached blocks of each key head of each piece, see `KVCache`."""
    mask: Tensor
    """Added to the scores: (n_pieces, 1, queries on one key head or 1, n_keys), zero or minus infinity."""


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All queries of a step. `order[t]` is where token t comes out when the groups are laid end to end."""

    groups: tuple[Group, ...]
    order: Tensor


def plan_attention(
    spans: Iterable[Span], config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> AttentionPlan:
    """The same plan serves every layer of the step."""
    pieces_of: defaultdict[tuple[int, int], list[_Piece]] = defaultdict(list)
    for span in spans:
        for piece in _cut(span):
            pieces_of[_filled(piece.n_tokens, config.group_size), piece.n_keys].append(piece)
    groups = []
    outputs: list[IntArray] = []
    tokens: list[IntArray] = []
    n_before = 0
    for (n_queries, _), pieces in pieces_of.items():
        groups.append(_group(pieces, n_queries, config, dtype, device))
        for piece in pieces:
            tokens.append(np.arange(piece.first, piece.first + piece.n_tokens))
            outputs.append(np.arange(n_before, n_before + piece.n_tokens))
            n_before += n_queries
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
    keys, values = (
        copies.view(group.n_pieces, n_kv_heads, group.n_keys, head_dim) for copies in cache.gather(layer, group.runs)
    )
    by_piece = (group.n_pieces, group.n_queries, n_kv_heads, n_heads // n_kv_heads, head_dim)
    # The queries that share a key head stand side by side: one product for all of them, keys read once.
    stacked = queries.index_select(0, group.tokens).view(by_piece).transpose(1, 2).flatten(2, 3)
    output = functional.scaled_dot_product_attention(stacked, keys, values, attn_mask=group.mask)
    by_head = output.view(group.n_pieces, n_kv_heads, group.n_queries, n_heads // n_kv_heads, head_dim)
    return by_head.transpose(1, 2).reshape(group.n_pieces * group.n_queries, n_heads * head_dim)


def _cut(span: Span) -> Iterable[_Piece]:
    position, end = span.start, span.start + span.n_tokens
    while position < end:
        stop = min(end, (position // SEGMENT_TOKENS + 1) * SEGMENT_TOKENS)
        yield _Piece(span.first + position - span.start, position, stop - position, span.block_ids)
        position = stop


def _filled(n_tokens: int, group_size: int) -> int:
    """The number of queries that a piece of so many tokens is computed as."""
    if n_tokens == 1:
        return -(-_MIN_STACKED_QUERIES // group_size)
    return -(-n_tokens // _QUERY_MULTIPLE) * _QUERY_MULTIPLE


def _group(
    pieces: Sequence[_Piece], n_queries: int, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Group:
    n_keys = pieces[0].n_keys
    firsts = np.array([piece.first for piece in pieces])
    starts = np.array([piece.start for piece in pieces])
    counts = np.array([piece.n_tokens for piece in pieces])
    offsets = np.minimum(np.arange(n_queries), counts[:, None] - 1)
    mask = _mask(starts[:, None] + offsets, n_keys, config.sliding_window)
    if n_queries > 1:
        mask = mask.repeat(config.group_size, axis=1)
    return Group(
        n_pieces=len(pieces),
        n_queries=n_queries,
        n_keys=n_keys,
        tokens=torch.from_numpy((firsts[:, None] + offsets).reshape(-1)).to(device),
        runs=torch.from_numpy(_runs(pieces, n_keys, config.n_kv_heads)).to(device),
        mask=torch.from_numpy(mask[:, None]).to(device, dtype),
    )


def _mask(positions: IntArray, n_keys: int, window: int | None) -> npt.NDArray[np.float32]:
    """(pieces, queries, n_keys) for the positions of queries (pieces, queries)."""
    keys = np.arange(n_keys)
    is_hidden = keys > positions[..., None]
    if window is not None:
        is_hidden |= keys <= positions[..., None] - window
    return np.where(is_hidden, np.float32(-np.inf), np.float32(0.0))


def _runs(pieces: Sequence[_Piece], n_keys: int, n_kv_heads: int) -> IntArray:
    """Blocks beyond a piece's own tokens are masked: any block does there, its own first one is taken."""
    n_blocks = n_keys // BLOCK_TOKENS
    blocks = np.empty((len(pieces), n_blocks), dtype=np.int64)
    for row, piece in zip(blocks, pieces, strict=True):
        n_held = min(n_blocks, -(-(piece.start + piece.n_tokens) // BLOCK_TOKENS))
        row[:n_held] = piece.block_ids[:n_held]
        row[n_held:] = row[0]
    return (blocks[:, None, :] * n_kv_heads + np.arange(n_kv_heads)[:, None]).reshape(-1)
