"""Chooses the next token of each row of a mixed batch.

The order: penalties, logit bias, bans; then the largest logit where the temperature is 0, else temperature, min_p,
top_k, top_p, and one random number. The token of a row depends on its own logits, settings, seed and position, and on
no random state. So a sequence that is computed again, or in another batch, gets the same tokens.

Filters cut by weight, which is the probability in float32 before it is normalised. They keep or drop tokens of equal
weight together, so the order in which a sort leaves equal tokens never decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sluiceway.engine.scheduler.plan import NO_TOKEN, Row
from sluiceway.model.kernels.loader import best_kernels, pool
from sluiceway.model.kernels.sampling import sample_natively
from sluiceway.model.penalties import FloatRow, FloatRows, PenaltyTable, has_penalties, lower_seen
from sluiceway.types import Rid, SamplingParams, TokenId

_GREEDY_BELOW = 1e-5
"""With a temperature below this, the largest logit is chosen: the quotient would exceed float32."""

_LARGEST = np.finfo(np.float32).max

_DRAW_BITS = 50
_SUM_BLOCK = 256
"""Weights are summed by blocks, and then within one block: rounding stays small, and the long pass is a plain sum."""

DoubleRow = npt.NDArray[np.float64]


class Sampler:
    """Samples tokens. It keeps the token counts of sequences with penalties, and nothing else."""

    def __init__(self, eos_token_ids: Sequence[TokenId]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._penalties = PenaltyTable()

    def sample(self, logits: Tensor, rows: Sequence[Row]) -> list[TokenId]:
        """Sample the next token of each row from logits (rows, vocab_size), which are overwritten.

        NaN counts as minus infinity. A row without a larger logit gives `NO_TOKEN`.
        """
        values: FloatRows = logits.float().cpu().numpy()
        self._penalise(values, rows)
        _add_biases(values, rows)
        self._ban_ends(values, rows)
        sampled = [index for index, row in enumerate(rows) if row.sampling.temperature >= _GREEDY_BELOW]
        tokens = np.empty(len(rows), dtype=np.int64)
        if sampled:
            tokens[sampled] = sample_rows([values[index] for index in sampled], [rows[index] for index in sampled])
        for index in set(range(len(rows))).difference(sampled):
            tokens[index] = _largest(values[index])
        return [int(token) for token in tokens]

    def forget(self, rids: Iterable[Rid]) -> None:
        self._penalties.forget(rids)

    @property
    def n_remembered(self) -> int:
        """The number of sequences for which counts are kept."""
        return len(self._penalties)

    def _penalise(self, logits: FloatRows, rows: Sequence[Row]) -> None:
        seen = []
        for index, row in enumerate(rows):
            if has_penalties(row.sampling):
                n_known = _position(row) - len(row.drafts)
                counts = self._penalties.counts_of(row.rid, row.known, n_known, row.n_prompt)
                seen.append((index, counts.with_drafts(row.drafts), row.sampling))
        lower_seen(logits, seen)

    def _ban_ends(self, logits: FloatRows, rows: Sequence[Row]) -> None:
        """Ban end tokens before `min_tokens`, unless every other token is impossible."""
        places = [
            (index, token_id)
            for index, row in enumerate(rows)
            if _position(row) - row.n_prompt < row.sampling.min_tokens
            for token_id in (*self._eos_token_ids, *row.sampling.stop_token_ids)
            if token_id < logits.shape[1]
        ]
        if places:
            indexes = tuple(zip(*places, strict=True))
            # Not minus infinity: a vocabulary of ends alone must still give a token.
            logits[indexes] = np.where(logits[indexes] > -np.inf, -_LARGEST, logits[indexes])


def _add_biases(logits: FloatRows, rows: Sequence[Row]) -> None:
    biases = [
        (index, token_id, bias)
        for index, row in enumerate(rows)
        for token_id, bias in row.sampling.logit_bias
        if token_id < logits.shape[1]
    ]
    if biases:
        indexes, token_ids, values = zip(*biases, strict=True)
        np.add.at(logits, (indexes, token_ids), np.array(values, dtype=np.float32))


def _largest(logits: FloatRow) -> int:
    token = int(logits.argmax())
    if np.isnan(logits[token]):  # numpy takes NaN for the largest
        logits = np.where(np.isnan(logits), -np.inf, logits)
        token = int(logits.argmax())
    return NO_TOKEN if logits[token] == -np.inf else token


def is_plainly_greedy(row: Row) -> bool:
    """True when the token of the row is the one with the largest unchanged logit."""
    sampling = row.sampling
    return not (
        sampling.temperature >= _GREEDY_BELOW
        or has_penalties(sampling)
        or sampling.logit_bias
        or _position(row) - row.n_prompt < sampling.min_tokens
    )


def sample_rows(logits: Sequence[FloatRow], rows: Sequence[Row]) -> npt.NDArray[np.integer]:
    """Sample a token for each row from its logits (vocab_size), which are contiguous. See `Sampler.sample`."""
    uniforms = uniform([row.seed for row in rows], [_position(row) for row in rows])
    kernels = best_kernels()
    if kernels is not None:
        settings = [row.sampling for row in rows]
        return sample_natively(kernels, pool(torch.get_num_threads()), logits, settings, uniforms)
    weights = _weights(np.stack(logits), rows)
    _filter(weights, [row.sampling for row in rows])
    return np.array([_invert(row, u) if row.any() else NO_TOKEN for row, u in zip(weights, uniforms, strict=True)])


def uniform(seeds: Sequence[int], positions: Sequence[int]) -> DoubleRow:
    """A number in [0, 1) for each seed and position, by SplitMix64 (https://doi.org/10.1145/2714064.2660195), twice."""
    seed_bits = np.array(seeds, dtype=np.uint64)
    position_bits = np.array(positions, dtype=np.uint64)
    bits = _mix(_mix(seed_bits) + position_bits)
    return (bits >> np.uint64(64 - _DRAW_BITS)).astype(np.float64) * 2.0**-_DRAW_BITS


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed = state + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _position(row: Row) -> int:
    """The position of the token that is sampled."""
    return row.start + row.n_tokens


def _weights(logits: FloatRows, rows: Sequence[Row]) -> FloatRows:
    """Unnormalised probabilities: 1 for the likeliest token of each row; all 0 if no token is possible."""
    finite = np.nan_to_num(logits, nan=-np.inf, posinf=float(_LARGEST), neginf=-np.inf)
    top = finite.max(axis=-1, keepdims=True)
    top[np.isneginf(top)] = 0.0
    temperatures = np.array([row.sampling.temperature for row in rows], dtype=np.float32)[:, None]
    with np.errstate(over="ignore"):  # to minus infinity: impossible, as it should be
        weights: FloatRows = np.exp((finite - top) * (np.float32(1) / temperatures))
    return weights


def _filter(weights: FloatRows, settings: Sequence[SamplingParams]) -> None:
    """Set weights to zero that min_p, top_k and top_p leave out, in this order."""
    for row, sampling in zip(weights, settings, strict=True):
        if sampling.min_p > 0.0:
            row[row < np.float32(sampling.min_p)] = 0.0
        is_top_k = 0 < sampling.top_k < row.size
        if is_top_k or sampling.top_p < 1.0:
            row[row < _smallest_kept(row, sampling.top_k if is_top_k else row.size, sampling.top_p)] = 0.0


def _smallest_kept(weights: FloatRow, top_k: int, top_p: float) -> np.float32:
    ascending = np.sort(weights)
    by_k = ascending[-top_k]
    if top_p >= 1.0:
        return np.float32(by_k)
    kept = ascending[np.searchsorted(ascending, by_k) :][::-1]
    sums = np.cumsum(kept, dtype=np.float64)
    n_kept = int(np.searchsorted(sums, top_p * sums[-1])) + 1
    return np.float32(kept[min(n_kept, kept.size) - 1])


def _invert(weights: FloatRow, u: float) -> int:
    """The token at which the running sum of weights exceeds the part `u` of their total."""
    starts = np.arange(0, weights.size, _SUM_BLOCK)
    block_sums = np.cumsum(np.add.reduceat(weights, starts, dtype=np.float64))
    target = u * block_sums[-1]
    block = int(np.searchsorted(block_sums, target, side="right"))
    first = block * _SUM_BLOCK
    sums = np.cumsum(weights[first : first + _SUM_BLOCK], dtype=np.float64)
    sums += block_sums[block - 1] if block else 0.0
    within = int(np.searchsorted(sums, target, side="right"))
    # The two sums may differ in the last bit: stay on a token that can be.
    last = int(np.flatnonzero(weights[first : first + _SUM_BLOCK])[-1])
    return first + min(within, last)
