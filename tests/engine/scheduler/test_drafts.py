"""Which drafts are proposed, how many, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.engine.scheduler.drafts import MAX_NGRAM, MIN_NGRAM, Drafter, DraftLength, NgramIndex, count_accepted
from sluiceway.types import TokenId


class CountedList(list[TokenId]):
    """Counts reads of its items."""

    n_read = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.n_read += 1
        return super().__getitem__(index)


def continuation(known: Sequence[TokenId], n: int = 4) -> list[TokenId]:
    index = NgramIndex()
    index.advance(known, len(known))
    return index.continuation(known, n)


def continuation_by_search(known: Sequence[TokenId], n: int) -> list[TokenId]:
    """Search by the definition: the text after the latest place of the longest n-gram, repeated beyond the end."""
    for size in range(MAX_NGRAM, MIN_NGRAM - 1, -1):
        for place in range(len(known) - 1, size - 1, -1):
            if list(known[place - size : place]) == list(known[-size:]):
                text = list(known)
                while len(text) < len(known) + n:
                    text.append(text[place + len(text) - len(known)])
                return text[len(known) :]
    return []


@pytest.mark.parametrize(
    ("known", "drafts"),
    [
        ([], []),
        ([1], []),
        ([1, 1], []),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], [4, 9, 1, 2]),
        ([5, 1, 2, 3, 9, 6, 1, 2, 4, 9, 5, 1, 2], [3, 9, 6, 1]),
        ([1, 2, 3, 1], []),
        ([1, 2, 3, 4, 8, 9, 2, 3, 4, 7, 1, 2, 3, 4], [8, 9, 2, 3]),
    ],
)
def test_drafts_are_the_tokens_that_followed_the_same_n_gram(known: list[TokenId], drafts: list[TokenId]) -> None:
    """A longer n-gram takes precedence over a later one. A single token is no n-gram."""
    assert continuation(known) == drafts


@pytest.mark.parametrize(
    ("known", "drafts"),
    [([7, 7, 7], [7, 7, 7, 7, 7]), ([1, 2, 1, 2], [1, 2, 1, 2, 1]), ([4, 1, 2, 3, 1, 2], [3, 1, 2, 3, 1])],
)
def test_drafts_repeat_themselves_beyond_the_end_of_the_text(known: list[TokenId], drafts: list[TokenId]) -> None:
    """A loop gives any number of drafts."""
    assert continuation(known, 5) == drafts


@settings(derandomize=True, max_examples=300, deadline=None)
@given(known=st.lists(st.integers(0, 3), max_size=40), n=st.integers(1, 8), cuts=st.lists(st.integers(0, 40)))
def test_index_agrees_with_a_search_in_steps_of_any_size(known: list[TokenId], n: int, cuts: list[int]) -> None:
    """Steps backwards do nothing."""
    index = NgramIndex()
    for cut in cuts:
        index.advance(known, min(cut, len(known)))
    index.advance(known, len(known))
    assert index.continuation(known, n) == continuation_by_search(known, n)


def test_cost_of_a_step_does_not_grow_with_the_text() -> None:
    """One more token costs a few reads, after ten tokens and after ten thousand."""
    costs = []
    for n in (10, 10_000):
        known, drafter = CountedList(range(n)), Drafter(8)
        drafter.draft(known, 8)
        known.append(3)
        known.n_read = 0
        drafter.draft(known, 8)
        costs.append(known.n_read)
    assert costs[0] == costs[1] <= 8


def test_length_stays_the_greatest_while_all_drafts_are_accepted() -> None:
    length = DraftLength(8)
    for _ in range(5):
        assert length.is_due() and length.tokens == 8
        length.observe(8, 8)


@pytest.mark.parametrize(("n_accepted", "tokens"), [(0, 6), (2, 6), (3, 7), (4, 8), (7, 8), (8, 8)])
def test_length_falls_by_a_quarter_when_a_draft_was_wrong(n_accepted: int, tokens: int) -> None:
    """It does not fall below one more than twice the number of accepted drafts."""
    length = DraftLength(8)
    length.observe(8, n_accepted)
    assert length.tokens == tokens


def test_length_falls_to_one_and_recovers_when_all_drafts_are_accepted() -> None:
    """One accepted draft is enough if the step had no other."""
    length, lengths = DraftLength(8), []
    for _ in range(7):
        length.observe(length.tokens, 0)
        lengths.append(length.tokens)
    assert lengths == [6, 4, 3, 2, 1, 1, 1]
    length.observe(1, 1)
    assert length.tokens == 8


def test_pauses_double_after_repeated_failures() -> None:
    """Four failures cause no pause. Then pauses take 1, 3, 7 and up to 63 steps, until a draft is accepted."""
    length, pauses = DraftLength(4), []
    for _ in range(12):
        length.observe(1, 0)
        pauses.append(next(n for n in range(100) if length.is_due()))
    assert pauses == [0, 0, 0, 0, 1, 3, 7, 15, 31, 63, 63, 63]
    length.observe(4, 1)
    assert length.is_due()
    length.observe(3, 0)
    assert length.is_due(), "the count of failures starts again"


def test_drafts_fit_into_the_room() -> None:
    """A step without room does not count as a step of a pause."""
    drafter = Drafter(6)
    known = [1, 2, 3, 1, 2]
    assert drafter.draft(known, 100) == [3, 1, 2, 3, 1, 2]
    assert drafter.draft(known, 2) == [3, 1]
    for _ in range(5):
        drafter.observe(known, 4, n_drafts=2, n_accepted=0)
    assert drafter.draft(known, 0) == drafter.draft(known, -3) == []
    assert drafter.draft(known, 5) == [], "the pause of one step"
    assert drafter.draft(known, 5) == [3], "one draft, because none was accepted"


def test_length_stays_when_a_step_had_no_drafts() -> None:
    """The index still reads the tokens of the step."""
    drafter = Drafter(4)
    known = [1, 2, 3, 1, 2]
    drafter.observe(known, 4, n_drafts=0, n_accepted=0)
    assert len(drafter.index) > 0
    assert drafter.draft(known, 9) == [3, 1, 2, 3]


def test_index_is_built_again_after_it_was_dropped() -> None:
    drafter = Drafter(4)
    known = [1, 2, 3, 1, 2]
    before = drafter.draft(known, 4)
    drafter.forget()
    assert len(drafter.index) == 0
    assert drafter.draft(known, 4) == before


@pytest.mark.parametrize(
    ("drafts", "sampled", "n"),
    [
        ([], [], 0),
        ([], [5], 0),
        ([5], [5, 6], 1),
        ([5], [4, 6], 0),
        ([5, 6, 7], [5, 6, 7, 8], 3),
        ([5, 6, 7], [5, 4, 7, 8], 1),
    ],
)
def test_drafts_are_accepted_up_to_the_first_that_was_not_sampled(
    drafts: list[TokenId], sampled: list[TokenId], n: int
) -> None:
    """Tokens after a wrong draft were sampled after the wrong text, even if they agree."""
    assert count_accepted(drafts, sampled) == n
