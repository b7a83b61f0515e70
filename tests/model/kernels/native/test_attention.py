"""Attention over the paged cache against float64, for lengths, heads, windows and block tables of all kinds."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from sluiceway.model.kernels import binding
from sluiceway.model.kernels.binding import Kernels, Pool
from support.native import SETS, FloatArray, kernel_set, pools, random_floats, rounded

N_BLOCKS = 200


@dataclass
class Setting:
    """A cache of random numbers; `keys` and `values` are (blocks * 16, n_kv_heads, head_dim)."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    window: int = 0

    def __post_init__(self) -> None:
        shape = (N_BLOCKS * 16, self.n_kv_heads, self.head_dim)
        self.keys = rounded(random_floats(*shape, seed=1))
        self.values = rounded(random_floats(*shape, seed=2))
        width = -(-self.head_dim // 32) * 32
        padded = [np.pad(x, ((0, 0), (0, 0), (0, width - self.head_dim))) for x in (self.keys, self.values)]
        keys, values = (bf16(x).reshape(N_BLOCKS, 16, self.n_kv_heads, width) for x in padded)
        self.packed_keys = np.ascontiguousarray(
            keys.reshape(N_BLOCKS, 16, self.n_kv_heads, width // 2, 2).transpose(0, 2, 3, 1, 4)
        )
        self.packed_values = np.ascontiguousarray(
            values.reshape(N_BLOCKS, 8, 2, self.n_kv_heads, width // 16, 16).transpose(0, 3, 4, 1, 5, 2)
        )

    def attend(
        self, kernels: Kernels, pool: Pool, spans: list[tuple[int, int, list[int]]], queries: FloatArray
    ) -> FloatArray:
        """Compute the attention of spans (start, tokens, blocks) with queries (tokens, n_heads, head_dim)."""
        counts, tables = [n for _, n, _ in spans], [blocks for _, _, blocks in spans]
        first = running_sums(counts)
        first_block = running_sums([len(table) for table in tables])
        start = np.array([span[0] for span in spans], np.int32)
        blocks = np.concatenate(tables).astype(np.int32)
        model = binding.Model(
            n_heads=self.n_heads, n_kv_heads=self.n_kv_heads, head_dim=self.head_dim, window=self.window
        )
        cache = binding.Cache(self.packed_keys.ctypes.data, self.packed_values.ctypes.data, self.packed_keys.size)
        places = (array.ctypes.data for array in (first, start, first_block, blocks))
        out = np.full_like(queries, np.nan)
        queries = np.ascontiguousarray(queries)
        rows = binding.Rows(*places, len(spans))
        assert kernels.attend(
            ctypes.byref(model), ctypes.byref(cache), ctypes.byref(rows), queries.ctypes.data, out.ctypes.data, pool
        ) == 0  # fmt: skip
        return out

    def by_definition(self, query: FloatArray, position: int, blocks: list[int]) -> npt.NDArray[np.float64]:
        """Compute the attention of one query (n_heads, head_dim) by the definition."""
        first = max(0, position - self.window + 1) if self.window else 0
        places = [blocks[at // 16] * 16 + at % 16 for at in range(first, position + 1)]
        outputs = []
        for head in range(self.n_heads):
            k, v = (x[places, head * self.n_kv_heads // self.n_heads] for x in (self.keys, self.values))
            scores = k @ rounded(query[head]) / self.head_dim**0.5
            weights = np.exp(scores - scores.max())
            outputs.append(weights / weights.sum() @ v)
        return np.stack(outputs)


def bf16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def running_sums(counts: list[int]) -> npt.NDArray[np.int32]:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int32)


def table(n_tokens: int, seed: int) -> list[int]:
    """Return random blocks of the cache, enough for this many tokens."""
    chosen: list[int] = np.random.default_rng(seed).permutation(N_BLOCKS)[: -(-n_tokens // 16)].tolist()
    return chosen


SETTINGS = {
    "three to one": Setting(9, 3, 64),
    "one to one": Setting(2, 2, 32),
    "many to one": Setting(50, 1, 16),
    "wide": Setting(4, 2, 128),
    "widest": Setting(2, 1, 256),
    "no multiple": Setting(4, 2, 40),
    "window": Setting(4, 2, 64, window=70),
}
SPANS = {
    "one decodes": [(200, 1)],
    "the first token": [(0, 1)],
    "many decode": [(i * 37 % 300, 1) for i in range(9)],
    "one prefills": [(0, 150)],
    "a chunk in the middle": [(100, 90)],
    "all at once": [(5, 1), (0, 40), (127, 2), (128, 1), (250, 60), (0, 1)],
    "long": [(2999, 1), (2500, 3)],
}


@pytest.mark.parametrize("spans", SPANS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SETS)
def test_outputs_equal_the_definition(name: str, setting: str, spans: str) -> None:
    """The error is at most that of rounding the weights to bf16. Rows may share blocks."""
    kernels, chosen = kernel_set(name), SETTINGS[setting]
    placed = [(start, n, table(start + n, i)) for i, (start, n) in enumerate(SPANS[spans])]
    queries = random_floats(sum(n for _, n, _ in placed), chosen.n_heads, chosen.head_dim, seed=3)
    positions = [(start + i, blocks) for start, n, blocks in placed for i in range(n)]
    for pool in pools():
        out = chosen.attend(kernels, pool, placed, queries)
        for token in range(0, len(positions), 7):
            expected = chosen.by_definition(queries[token], *positions[token])
            np.testing.assert_allclose(out[token], expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("setting", ["three to one", "many to one", "window"])
@pytest.mark.parametrize("name", SETS)
def test_a_query_has_the_same_bits_in_any_batch_and_chunk(name: str, setting: str) -> None:
    """The prompt is computed whole, in chunks of all sizes, token by token, and in a batch with other rows."""
    kernels, chosen, pool = kernel_set(name), SETTINGS[setting], pools()[1]
    blocks = table(300, 0)
    queries = random_floats(300, chosen.n_heads, chosen.head_dim, seed=3)
    whole = chosen.attend(kernels, pool, [(0, 300, blocks)], queries)
    bounds = [0, 1, 2, 17, 64, 65, 100, 163, 299, 300]
    for start, end in zip(bounds, bounds[1:], strict=False):
        spans = [(90, 1, table(91, 5)), (start, end - start, blocks), (0, 20, table(20, 6))]
        batch = random_floats(1 + end - start + 20, chosen.n_heads, chosen.head_dim, seed=4)
        batch[1 : 1 + end - start] = queries[start:end]
        out = chosen.attend(kernels, pool, spans, batch)
        assert np.array_equal(out[1 : 1 + end - start], whole[start:end]), f"{start} to {end}"
