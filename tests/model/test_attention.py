"""Attention over the paged cache is close to its definition in float64, in batches of every shape."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sluiceway.config import BLOCK_TOKENS
from sluiceway.model.attention import SEGMENT_TOKENS, Span, Tiling, attend, plan_attention, tiling_of
from sluiceway.model.config import ModelConfig
from sluiceway.model.kv import KVCache

CPU = torch.device("cpu")
N_BLOCKS = 96


def config(n_heads: int = 6, n_kv_heads: int = 2, window: int | None = None) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        n_layers=1,
        hidden_size=64,
        intermediate_size=96,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=16,
        vocab_size=100,
        max_model_len=2048,
        rms_eps=1e-5,
        rope_theta=1e4,
        sliding_window=window,
    )


def filled_cache(c: ModelConfig, dtype: torch.dtype = torch.float32) -> tuple[KVCache, Tensor, Tensor]:
    """A cache of random numbers, and its keys and values (blocks * tokens, n_kv_heads, head_dim)."""
    cache = KVCache(c, N_BLOCKS, dtype, CPU)
    generator = torch.Generator().manual_seed(0)
    keys, values = torch.randn(2, N_BLOCKS * BLOCK_TOKENS, c.n_kv_heads, c.head_dim, generator=generator).to(dtype)
    tokens = torch.arange(N_BLOCKS * BLOCK_TOKENS)[:, None]
    runs = tokens // BLOCK_TOKENS * c.n_kv_heads + torch.arange(c.n_kv_heads)
    cache.write(0, (runs * BLOCK_TOKENS + tokens % BLOCK_TOKENS).reshape(-1), keys, values)
    return cache, keys, values


def by_definition(
    c: ModelConfig, query: Tensor, position: int, places: list[int], keys: Tensor, values: Tensor
) -> Tensor:
    """Compute one query (n_heads, head_dim) over the keys at `places`, in the order of positions."""
    first = 0 if c.sliding_window is None else max(0, position - c.sliding_window + 1)
    seen = places[first : position + 1]
    outputs = []
    for head in range(c.n_heads):
        k, v = (x[seen, head // c.group_size].double() for x in (keys, values))
        outputs.append(torch.softmax(k @ query[head].double() / c.head_dim**0.5, 0) @ v)
    return torch.cat(outputs)


SPANS: dict[str, list[tuple[int, int]]] = {
    "one decodes": [(200, 1)],
    "the first token": [(0, 1)],
    "many decode": [(i * 17 % 300, 1) for i in range(9)],
    "one prefills": [(0, 300)],
    "a chunk over two borders of segments": [(100, 190)],
    "all at once": [(5, 1), (0, 40), (127, 2), (128, 1), (250, 60), (0, 1)],
}


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SPANS)
def test_outputs_equal_the_definition(
    name: str, dtype: torch.dtype, heads: tuple[int, int], window: int | None
) -> None:
    """Blocks are anywhere in the cache, and rows may share them. Attention runs in tiles (float32) and whole."""
    c = config(*heads, window=window)
    cache, keys, values = filled_cache(c, dtype)
    generator = torch.Generator().manual_seed(1)
    spans, owners = [], []
    n_tokens = 0
    for start, n in SPANS[name]:
        block_ids = torch.randperm(N_BLOCKS, generator=generator)[: -(-(start + n) // BLOCK_TOKENS)].tolist()
        spans.append(Span(n_tokens, start, n, block_ids))
        owners += [(position, block_ids) for position in range(start, start + n)]
        n_tokens += n
    queries = torch.randn(n_tokens, c.n_heads, c.head_dim, generator=generator).to(dtype)

    outputs = attend(queries, cache, 0, plan_attention(spans, c, dtype, CPU))

    assert outputs.shape == (n_tokens, c.n_heads * c.head_dim)
    for token in range(0, n_tokens, 7):
        position, block_ids = owners[token]
        places = [block * BLOCK_TOKENS + offset for block in block_ids for offset in range(BLOCK_TOKENS)]
        expected = by_definition(c, queries[token], position, places, keys, values)
        error = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(outputs[token].double(), expected, rtol=error, atol=error)


def test_rows_in_one_stage_share_a_call() -> None:
    """32 rows that decode within one segment are one group, whatever their lengths."""
    spans = [Span(i, i * 3, 1, list(range(8))) for i in range(32)]
    for dtype in (torch.float32, torch.bfloat16):
        plan = plan_attention(spans, config(), dtype, CPU)
        assert [group.n_pieces for group in plan.groups] == [32]
        assert len(plan.order) == 32


@pytest.mark.parametrize("group_size", range(1, 33))
def test_tiles_hold_a_multiple_of_six_vectors(group_size: int) -> None:
    """They hold at least one whole token. Without tiles, a piece is one token."""
    tiling = tiling_of(100, group_size, is_tiled=True)
    assert tiling.n_vectors % 6 == 0
    assert group_size <= tiling.n_queries * group_size <= tiling.n_vectors
    assert tiling.n_tiles * tiling.n_queries >= 100 > (tiling.n_tiles - 1) * tiling.n_queries
    assert tiling_of(100, group_size, is_tiled=False) == Tiling(1, 112, 112 * group_size)
    assert tiling_of(1, group_size, is_tiled=False) == Tiling(1, 1, group_size)


def test_keys_are_computed_up_to_the_end_of_a_query_s_own_segment() -> None:
    """So the sums of a row depend on its own position only, and a short row costs the same beside a long one."""
    spans = [Span(0, 3, 1, [0]), Span(1, 1000, 1, list(range(63)))]
    plan = plan_attention(spans, config(), torch.float32, CPU)
    assert sorted(group.n_keys for group in plan.groups) == [SEGMENT_TOKENS, 1024]


def test_blocks_of_other_sequences_change_nothing() -> None:
    """The test overwrites all blocks that the row does not have."""
    c = replace(config(), n_heads=6)
    cache, _, _ = filled_cache(c)
    queries = torch.ones(1, c.n_heads, c.head_dim)
    plan = plan_attention([Span(0, 20, 1, [4, 9])], c, torch.float32, CPU)
    before = attend(queries, cache, 0, plan)
    others = [run for run in range(N_BLOCKS * c.n_kv_heads) if run // c.n_kv_heads not in (4, 9)]
    slots = (torch.tensor(others)[:, None] * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS)).reshape(-1)
    junk = torch.full((len(slots) // c.n_kv_heads, c.n_kv_heads, c.head_dim), 1e30)
    cache.write(0, slots, junk, junk)
    assert torch.equal(attend(queries, cache, 0, plan), before)
