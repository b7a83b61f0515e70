"""Speculation without a second model: guesses at the next tokens, looked up in the sequence's own earlier tokens.

Theory of operation
-------------------
Text repeats itself: names, quotations, code, lists. So if the last few tokens (an *n-gram*) stood somewhere before,
what followed there may follow again. Those tokens are proposed as *drafts*. The step that computes the sequence's next
token runs the drafts along with it, as if they were known, and samples after each of them. As long as a sampled token
is the draft in its place, the next one was sampled after true tokens and is true as well. The first that differs is
still true itself, and the rest is dropped. So a step gives one token at least, and the tokens are those that would have
come one by one.

The longest n-gram decides, and of its places the latest: what was said last is repeated first. Drafts may run into the
end of the text; then they go on with themselves, as an LZ77 copy does, so that a short loop is drafted at any length.

Drafts cost compute when they are wrong, though little where few tokens are computed. So their number follows what
became of the last ones: the most after a step in which all came true, else three quarters of what it was, though never
less than one more than twice those accepted. A sequence whose drafts fail altogether, again and again, rests: twice as
long after each further failure.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway.types import TokenId

MAX_NGRAM = 4
MIN_NGRAM = 2
"""One token alone says little: nearly each has stood before."""

_PATIENCE = 4
"""Failures in a row that are followed by no rest: a text that repeats itself now and then is no hopeless one."""

_MAX_DOUBLINGS = 6
"""A text of which nothing can be guessed costs one draft in 64 steps, and is found out within as many when it begins to
repeat itself."""


class NgramIndex:
    """Where each n-gram stood last. Costs time by the tokens that are new to it, and about 600 bytes for each token."""

    def __init__(self) -> None:
        self._after: dict[tuple[TokenId, ...], int] = {}
        """The place of the token that followed."""
        self._n_read = 0

    def __len__(self) -> int:
        return len(self._after)

    def advance(self, known: Sequence[TokenId], n_known: int) -> None:
        """Reads `known` up to `n_known`; a sequence only ever grows."""
        for place in range(self._n_read, n_known):
            for size in range(MIN_NGRAM, min(MAX_NGRAM, place) + 1):
                self._after[tuple(known[place - size : place])] = place
        self._n_read = max(self._n_read, n_known)

    def continuation(self, known: Sequence[TokenId], n: int) -> list[TokenId]:
        """What may follow `known`, which was read to its end: n tokens, or none."""
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
    """How many drafts a sequence is worth now: `tokens`, up to `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._n_failures = 0
        self._rest_steps = 0
        self.tokens = most

    def is_due(self) -> bool:
        """Whether to draft in this step; ask once a step."""
        if self._rest_steps:
            self._rest_steps -= 1
            return False
        return True

    def observe(self, n_drafts: int, n_accepted: int) -> None:
        """So many drafts were run, one at least, and so many of them came true."""
        if n_accepted == n_drafts:
            self.tokens = self._most
        else:
            self.tokens = min(self._most, max(2 * n_accepted + 1, self.tokens * 3 // 4))
        self._n_failures = 0 if n_accepted else min(self._n_failures + 1, _PATIENCE + _MAX_DOUBLINGS)
        self._rest_steps = (1 << max(0, self._n_failures - _PATIENCE)) - 1


class Drafter:
    """Drafts for one sequence. Its index lives as long as the sequence's blocks do, and is made with them again."""

    def __init__(self, max_draft_tokens: int) -> None:
        self._length = DraftLength(max_draft_tokens)
        self.index = NgramIndex()

    def draft(self, known: Sequence[TokenId], room: int) -> list[TokenId]:
        """What may follow `known`, `room` tokens at most; asked once a step."""
        if room < 1 or not self._length.is_due():
            return []
        self.index.advance(known, len(known))
        return self.index.continuation(known, min(room, self._length.tokens))

    def observe(self, known: Sequence[TokenId], n_computed: int, n_drafts: int, n_accepted: int) -> None:
        """A step has computed so many tokens of `known`, and what it found of its drafts."""
        self.index.advance(known, n_computed)
        if n_drafts:
            self._length.observe(n_drafts, n_accepted)

    def forget(self) -> None:
        """The blocks are gone."""
        self.index.clear()


def count_accepted(drafts: Sequence[TokenId], sampled: Sequence[TokenId]) -> int:
    """How many drafts, from the first on, are the token that was sampled in their place."""
    for n, (draft, token_id) in enumerate(zip(drafts, sampled, strict=False)):
        if draft != token_id:
            return n
    return len(drafts)
