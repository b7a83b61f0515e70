"""The states of a response: the table is total, and what it says is what its page says."""

from __future__ import annotations

import itertools

import pytest

from sluiceway.errors import InvariantError
from sluiceway.response import lifecycle
from sluiceway.response.lifecycle import ENDED, LIVE, TRANSITIONS, Input, State, meaning_of_loss, next_state
from support.state_tables import table_in

WELCOME = (Input.WRITTEN, Input.LOST, Input.TICKED, Input.CLOSE)


def test_table_in_the_docstring_is_the_table_in_the_code() -> None:
    documented = table_in(lifecycle.__doc__, "input")
    assert {(State(state), Input(given)): State(cell) for (given, state), cell in documented.items()} == TRANSITIONS


@pytest.mark.parametrize(("state", "given_input"), list(itertools.product(State, Input)))
def test_every_pair_is_in_the_table_or_raises(state: State, given_input: Input) -> None:
    """Total: a next state, or an `InvariantError` and no other."""
    if (state, given_input) in TRANSITIONS:
        assert next_state(state, given_input) is TRANSITIONS[state, given_input]
    else:
        with pytest.raises(InvariantError, match=f"{state.value} cannot take {given_input.value}"):
            next_state(state, given_input)


@pytest.mark.parametrize(("state", "word"), list(itertools.product(State, WELCOME)))
def test_writers_cleanup_and_time_are_welcome_in_every_state(state: State, word: Input) -> None:
    """Who says them cannot know what has happened before."""
    assert (state, word) in TRANSITIONS


def test_a_response_that_is_over_does_not_live_again() -> None:
    """From the ended states one comes to the end, and from the end nowhere."""
    for (state, _), following in TRANSITIONS.items():
        assert state in LIVE or following not in LIVE
        assert state is not State.CLOSED or following is State.CLOSED


def test_each_state_but_the_last_is_live_or_ended() -> None:
    """And none is both."""
    assert LIVE | ENDED == set(State) - {State.CLOSED}
    assert not LIVE & ENDED


@pytest.mark.parametrize(
    ("state", "stays", "may_return", "is_kept", "meaning"),
    [
        (State.OPEN, True, True, True, Input.LOST),
        (State.OPEN, False, True, True, Input.LEFT),
        (State.OPEN, False, False, True, Input.DESERTED),
        (State.DETACHED, False, True, True, Input.LOST),
        (State.DRAINING, False, False, True, Input.LOST),
        (State.CLOSING, False, False, False, Input.DESERTED),
        (State.CLOSED, True, False, False, Input.LOST),
    ],
)
def test_loss_of_a_reader_means_what_follows_from_it(
    state: State, stays: bool, may_return: bool, is_kept: bool, meaning: Input
) -> None:
    """Nothing, where others read or nobody did; the end, where the response is for nobody any more."""
    assert meaning_of_loss(state, stays=stays, may_return=may_return, is_kept=is_kept) is meaning
