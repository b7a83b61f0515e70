"""Penalties for tokens that a sequence has already. Each token is counted once, so a step costs only its new tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sluiceway.types import Rid, SamplingParams, TokenId

FloatRow = npt.NDArray[np.float32]
FloatRows = npt.NDArray[np.float32]


def has_penalties(sampling: SamplingParams) -> bool:
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


class Seen(NamedTuple):
    """The distinct tokens of a sequence, and how often each was generated."""

    ids: npt.NDArray[np.int64]
    generated: FloatRow


def lower_seen(logits: FloatRows, seen: Sequence[tuple[int, Seen, SamplingParams]]) -> None:
    """Apply penalties to logits (rows, vocab_size) in place. Each entry of `seen` names the row of its sequence."""
    if not seen:
        return
    lengths = [len(each.ids) for _, each, _ in seen]
    places = (
        np.repeat([index for index, _, _ in seen], lengths),
        np.concatenate([each.ids for _, each, _ in seen]),
    )
    generated = np.concatenate([each.generated for _, each, _ in seen])
    repetition, frequency, presence = (
        np.repeat(np.array(setting, dtype=np.float32), lengths)
        for setting in zip(
            *((s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for _, _, s in seen), strict=True
        )
    )
    values = logits[places]
    with np.errstate(over="ignore", invalid="ignore"):  # sampling can handle infinity and NaN
        values = np.where(values > 0, values / repetition, values * repetition)
        values -= frequency * generated
        values -= presence * (generated > 0)
    logits[places] = values


class TokenCounts:
    """Counts how often each distinct token of one sequence was generated (0: it is in the prompt only)."""

    def __init__(self) -> None:
        self.n_seen = 0
        self._index_of: dict[TokenId, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._generated = np.empty(64, dtype=np.float32)

    def advance(self, known: Sequence[TokenId], n_known: int, n_prompt: int) -> None:
        """Count `known` up to `n_known`. Tokens are only appended to a sequence."""
        for position in range(self.n_seen, n_known):
            self._count(known[position], 1 if position >= n_prompt else 0)
        self.n_seen = n_known

    def with_drafts(self, drafts: Sequence[TokenId] = ()) -> Seen:
        """The counts as if the drafts were generated. With drafts a copy; else valid until the next `advance`."""
        n_distinct = len(self._index_of)
        for token_id in drafts:
            self._count(token_id, 1)
        n = len(self._index_of)
        seen = Seen(self._ids[:n], self._generated[:n])
        if drafts:
            seen = Seen(seen.ids.copy(), seen.generated.copy())
        for token_id in drafts:
            self._generated[self._index_of[token_id]] -= 1
        while len(self._index_of) > n_distinct:
            self._index_of.popitem()
        return seen

    def _count(self, token_id: TokenId, n_generated: int) -> None:
        index = self._index_of.get(token_id)
        if index is None:
            index = self._index_of[token_id] = len(self._index_of)
            if index == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._generated = np.concatenate((self._generated, np.empty_like(self._generated)))
            self._ids[index] = token_id
            self._generated[index] = 0
        self._generated[index] += n_generated


class PenaltyTable:
    """Keeps the counts of sequences with penalties until `forget`."""

    def __init__(self) -> None:
        self._counts: dict[Rid, TokenCounts] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def counts_of(self, rid: Rid, known: Sequence[TokenId], n_known: int, n_prompt: int) -> TokenCounts:
        """The counts of `known[:n_known]`. A new sequence is counted from its start."""
        counts = self._counts.get(rid)
        if counts is None or counts.n_seen > n_known:
            counts = self._counts[rid] = TokenCounts()
        counts.advance(known, n_known, n_prompt)
        return counts

    def forget(self, rids: Iterable[Rid]) -> None:
        """Drop the counts of these sequences. Unknown ids are ignored."""
        for rid in rids:
            self._counts.pop(rid, None)
