"""Guesses at the next tokens: what is proposed, how many, and when."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.engine.scheduler.drafts import MAX_NGRAM, MIN_NGRAM, Drafter, DraftLength, NgramIndex, count_accepted
from sluiceway.types import TokenId


class Counted(list[TokenId]):
    """Counts what is read of it."""

    n_read = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        self.n_read += 1
        return super().__getitem__(index)


def continuation(known: Sequence[TokenId], n: int = 4) -> list[TokenId]:
    index = NgramIndex()
    index.advance(known, len(known))
    return index.continuation(known, n)


def continuation_by_search(known: Sequence[TokenId], n: int) -> list[TokenId]:
    """By the definition: the longest n-gram, its latest place, and on from there, over the end if need be."""
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
def test_tokens_are_proposed_that_followed_when_the_last_ones_stood_before(
    known: list[TokenId], drafts: list[TokenId]
) -> None:
    """The latest place counts, and a longer n-gram before a later one; one token alone is none."""
    assert continuation(known) == drafts


@pytest.mark.parametrize(
    ("known", "drafts"),
    [([7, 7, 7], [7, 7, 7, 7, 7]), ([1, 2, 1, 2], [1, 2, 1, 2, 1]), ([4, 1, 2, 3, 1, 2], [3, 1, 2, 3, 1])],
)
def test_drafts_go_on_with_themselves_when_they_run_into_the_end(known: list[TokenId], drafts: list[TokenId]) -> None:
    """A loop is drafted at any length."""
    assert continuation(known, 5) == drafts


@settings(derandomize=True, max_examples=300, deadline=None)
@given(known=st.lists(st.integers(0, 3), max_size=40), n=st.integers(1, 8), cuts=st.lists(st.integers(0, 40)))
def test_index_finds_what_a_search_finds_however_it_was_advanced(known: list[TokenId], n: int, cuts: list[int]) -> None:
    """In steps of any size, also backwards, which do nothing."""
    index = NgramIndex()
    for cut in cuts:
        index.advance(known, min(cut, len(known)))
    index.advance(known, len(known))
    assert index.continuation(known, n) == continuation_by_search(known, n)


def test_step_costs_its_new_tokens_when_the_text_is_long() -> None:
    """A few reads for one more token, after ten or after ten thousand."""
    costs = []
    for n in (10, 10_000):
        known, drafter = Counted(range(n)), Drafter(8)
        drafter.draft(known, 8)
        known.append(3)
        known.n_read = 0
        drafter.draft(known, 8)
        costs.append(known.n_read)
    assert costs[0] == costs[1] <= 8


def test_all_are_worth_it_as_long_as_they_come_true() -> None:
    """From the first step on."""
    length = DraftLength(8)
    for _ in range(5):
        assert length.is_due() and length.tokens == 8
        length.observe(8, 8)


@pytest.mark.parametrize(("n_accepted", "tokens"), [(0, 6), (2, 6), (3, 7), (4, 8), (7, 8), (8, 8)])
def test_length_falls_by_a_quarter_when_a_draft_was_wrong(n_accepted: int, tokens: int) -> None:
    """But not below one more than twice those that were right."""
    length = DraftLength(8)
    length.observe(8, n_accepted)
    assert length.tokens == tokens


def test_length_falls_to_one_and_is_the_most_again_when_all_came_true() -> None:
    """Be it only one that there was room for."""
    length, lengths = DraftLength(8), []
    for _ in range(7):
        length.observe(length.tokens, 0)
        lengths.append(length.tokens)
    assert lengths == [6, 4, 3, 2, 1, 1, 1]
    length.observe(1, 1)
    assert length.tokens == 8


def test_rests_double_when_nothing_comes_true_again_and_again() -> None:
    """Not for the first four failures; then 1, 3, 7 and so on up to 63 steps. One success ends that."""
    length, rests = DraftLength(4), []
    for _ in range(12):
        length.observe(1, 0)
        rests.append(next(n for n in range(100) if length.is_due()))
    assert rests == [0, 0, 0, 0, 1, 3, 7, 15, 31, 63, 63, 63]
    length.observe(4, 1)
    assert length.is_due()
    length.observe(3, 0)
    assert length.is_due(), "counted anew"


def test_drafts_fit_into_the_room_that_there_is() -> None:
    """Without room no step of a rest passes."""
    drafter = Drafter(6)
    known = [1, 2, 3, 1, 2]
    assert drafter.draft(known, 100) == [3, 1, 2, 3, 1, 2]
    assert drafter.draft(known, 2) == [3, 1]
    for _ in range(5):
        drafter.observe(known, 4, n_drafts=2, n_accepted=0)
    assert drafter.draft(known, 0) == drafter.draft(known, -3) == []
    assert drafter.draft(known, 5) == [], "the one step of rest"
    assert drafter.draft(known, 5) == [3], "one, since none came true"


def test_length_stays_when_a_step_had_no_drafts() -> None:
    """Nothing was learnt of them; its tokens are read all the same."""
    drafter = Drafter(4)
    known = [1, 2, 3, 1, 2]
    drafter.observe(known, 4, n_drafts=0, n_accepted=0)
    assert len(drafter.index) > 0
    assert drafter.draft(known, 9) == [3, 1, 2, 3]


def test_index_is_made_again_when_it_was_forgotten() -> None:
    """It is empty in between."""
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
    """What agrees behind a wrong one was sampled after the wrong text."""
    assert count_accepted(drafts, sampled) == n
