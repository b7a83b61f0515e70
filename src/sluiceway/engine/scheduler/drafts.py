"""Speculation without a second model: guesses of the next tokens, looked up in the sequence's own earlier tokens.

Theory of operation
-------------------
Text repeats itself: names, quotations, code, lists. If the last few tokens (an *n-gram*) occurred earlier, the tokens
that followed them then may follow again. Those tokens are the *drafts*. The step that computes the next token of the
sequence also computes the drafts, as if they were known, and samples after each of them. While a sampled token equals
the draft at its position, the next token was sampled after correct tokens, so it is correct too. The first sampled
token that differs is still correct; the tokens after it are dropped. So a step gives at least one token, and the tokens
are the same as without drafts.

The longest n-gram counts, and its latest occurrence. Drafts that reach the end of the text continue with themselves, as
an LZ77 copy does, so a short loop can be drafted at any length.

Wrong drafts cost compute, but little where a step computes few tokens. So the number of drafts depends on the last
ones. After a step in which all were accepted it is the maximum. Else it falls to three quarters, but not below one more
than twice the number accepted. A sequence whose drafts fail again and again pauses drafting, twice as long after each
failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.types import TokenId

MAX_NGRAM = 4
MIN_NGRAM = 2
"""A single token predicts little: nearly every token has occurred before."""

_PATIENCE = 4
"""Failures in a row before drafting pauses: a text may repeat itself only now and then."""

_MAX_DOUBLINGS = 6
"""A text that never repeats itself costs one draft in 64 steps, and drafting restarts within as many."""


class NgramIndex:
    """Finds the latest occurrence of each n-gram. It takes about 600 bytes per token, and time per new token."""

    def __init__(self) -> None:
        self._after: dict[tuple[TokenId, ...], int] = {}
        """The position of the token after each n-gram."""
        self._n_read = 0

    def __len__(self) -> int:
        return len(self._after)

    def advance(self, known: Sequence[TokenId], n_known: int) -> None:
        """Index `known` up to `n_known`. Tokens are only appended to a sequence."""
        for place in range(self._n_read, n_known):
            for size in range(MIN_NGRAM, min(MAX_NGRAM, place) + 1):
                self._after[tuple(known[place - size : place])] = place
        self._n_read = max(self._n_read, n_known)

    def continuation(self, known: Sequence[TokenId], n: int) -> list[TokenId]:
        """The n tokens that may follow `known`, all of which is indexed; an empty list if its end is new."""
        for size in range(min(MAX_NGRAM, len(known)), MIN_NGRAM - 1, -1):
            place = self._after.get(tuple(known[-size:]))
            if place is not None:
                period = len(known) - place
                return [known[place + i % period] for i in range(n)]
        return []

    def clear(self) -> None:
        self._after.clear()
        self._n_read = 0


class DraftLength:
    """Chooses how many drafts the next step of a sequence has: `tokens`, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_failures = 0
        self._rest_steps = 0
        self.tokens = most

    def is_due(self) -> bool:
        """True when this step has drafts. Call it once per step."""
        if self._rest_steps:
            self._rest_steps -= 1
            return False
        return True

    def observe(self, n_drafts: int, n_accepted: int) -> None:
        """Learn from a step that ran `n_drafts` drafts, at least one, of which `n_accepted` were accepted."""
        if n_accepted == n_drafts:
            self.tokens = self._most
        else:
            self.tokens = min(self._most, max(2 * n_accepted + 1, self.tokens * 3 // 4))
        self._n_failures = 0 if n_accepted else min(self._n_failures + 1, _PATIENCE + _MAX_DOUBLINGS)
        self._rest_steps = (1 << max(0, self._n_failures - _PATIENCE)) - 1


class Drafter:
    """Drafts tokens for one sequence. Its index is dropped with the blocks, and built again with them."""

    def __init__(self, max_draft_tokens: int) -> None:
        self._length = DraftLength(max_draft_tokens)
        self.index = NgramIndex()

    def draft(self, known: Sequence[TokenId], room: int) -> list[TokenId]:
        """At most `room` tokens that may follow `known`. Call it once per step."""
        if room < 1 or not self._length.is_due():
            return []
        self.index.advance(known, len(known))
        return self.index.continuation(known, min(room, self._length.tokens))

    def observe(self, known: Sequence[TokenId], n_computed: int, n_drafts: int, n_accepted: int) -> None:
        """Index the `n_computed` tokens that are computed, and learn from the drafts of the step."""
        self.index.advance(known, n_computed)
        if n_drafts:
            self._length.observe(n_drafts, n_accepted)

    def forget(self) -> None:
        """Drop the index, since the blocks are gone."""
        self.index.clear()


def count_accepted(drafts: Sequence[TokenId], sampled: Sequence[TokenId]) -> int:
    """How many drafts, counted from the first, equal the token that was sampled at their position."""
    for n, (draft, token_id) in enumerate(zip(drafts, sampled, strict=False)):
        if draft != token_id:
            return n
    return len(drafts)
