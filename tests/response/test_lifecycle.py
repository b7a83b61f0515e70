"""The table of the states of a response is complete, and equals its documentation."""

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
    """Each pair gives a next state, or raises `InvariantError` and no other exception."""
    if (state, given_input) in TRANSITIONS:
        assert next_state(state, given_input) is TRANSITIONS[state, given_input]
    else:
        with pytest.raises(InvariantError, match=f"{state.value} cannot take {given_input.value}"):
            next_state(state, given_input)


@pytest.mark.parametrize(("state", "word"), list(itertools.product(State, WELCOME)))
def test_inputs_of_writers_and_ticks_are_valid_in_every_state(state: State, word: Input) -> None:
    """Their callers cannot know what happened before."""
    assert (state, word) in TRANSITIONS


def test_an_ended_response_never_becomes_live_again() -> None:
    for (state, _), following in TRANSITIONS.items():
        assert state in LIVE or following not in LIVE
        assert state is not State.CLOSED or following is State.CLOSED


def test_each_state_but_the_last_is_live_or_ended() -> None:
    """No state is both."""
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
def test_the_meaning_of_a_lost_reader_depends_on_who_is_left(
    state: State, stays: bool, may_return: bool, is_kept: bool, meaning: Input
) -> None:
    """Nothing follows while others read. The last reader of a plain response ends it."""
    assert meaning_of_loss(state, stays=stays, may_return=may_return, is_kept=is_kept) is meaning
