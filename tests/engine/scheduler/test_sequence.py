"""The states of a sequence, its lengths, its ends and its drafts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.engine.scheduler import sequence as module
from sluiceway.engine.scheduler.drafts import Drafter
from sluiceway.engine.scheduler.sequence import TRANSITIONS, Input, Sequence, State, next_state
from sluiceway.errors import InvariantError
from sluiceway.types import FinishReason
from support.scheduling import EOS, request, sampling, submission
from support.state_tables import table_in

COMMANDS = (Input.PAUSE, Input.RESUME, Input.PARK, Input.FINISH)


def test_table_in_the_docstring_is_the_table_in_the_code() -> None:
    documented = table_in(module.__doc__, "state")
    assert {(State(state), Input(given)): State(cell) for (state, given), cell in documented.items()} == TRANSITIONS


@pytest.mark.parametrize(("state", "given_input"), list(itertools.product(State, Input)))
def test_every_pair_is_in_the_table_or_raises(state: State, given_input: Input) -> None:
    """The function is total: it returns a state or raises `InvariantError`."""
    if (state, given_input) in TRANSITIONS:
        assert next_state(state, given_input) is TRANSITIONS[state, given_input]
    else:
        with pytest.raises(InvariantError, match=f"{state.value} cannot {given_input.value}"):
            next_state(state, given_input)


@pytest.mark.parametrize(("state", "command"), list(itertools.product(State, COMMANDS)))
def test_commands_are_in_the_table_for_every_state(state: State, command: Input) -> None:
    """A client need not know the state of its sequence."""
    assert (state, command) in TRANSITIONS


@settings(derandomize=True, max_examples=200)
@given(st.lists(st.sampled_from(Input), max_size=30))
def test_state_does_not_change_when_an_input_raises(inputs: list[Input]) -> None:
    """A finished sequence stays finished, whatever the inputs are."""
    one = request()
    for given_input in inputs:
        before = one.state
        try:
            one.receive(given_input)
        except InvariantError:
            assert one.state is before
        assert before is not State.FINISHED or one.state is State.FINISHED
        assert not (one.is_queued and one.has_slot)


def test_new_sequence_has_no_computed_tokens() -> None:
    """Its known tokens are the prompt."""
    one = request(n_prompt=5)
    assert (one.n_prompt, one.n_generated, one.n_computed, one.n_uncomputed) == (5, 0, 0, 5)
    assert one.state is State.WAITING and one.is_queued and not one.has_slot and not one.is_ready


def test_running_sequence_is_ready_when_no_step_computes_it() -> None:
    one = request()
    one.receive(Input.SCHEDULE)
    assert one.is_ready and one.has_slot
    one.in_flight = 3
    assert not one.is_ready


def test_known_tokens_stay_when_computed_tokens_are_forgotten() -> None:
    one = request(n_prompt=5)
    one.receive(Input.SCHEDULE)
    one.n_computed, one.in_flight = 5, 2
    one.append(9)
    one.forget_computed()
    assert (one.n_computed, one.n_uncomputed, one.n_generated) == (0, 6, 1)
    assert one.is_ready, "no step computes it any more"


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [(None, 10), (1, 5), (6, 10), (7, 10), (10**18, 10)],
)
def test_max_tokens_is_clamped_to_the_room_in_the_context(max_tokens: int | None, expected: int) -> None:
    assert request(n_prompt=4, params=sampling(max_tokens=max_tokens), limit=10).max_length == expected


def reasons(one: Sequence, *token_ids: int) -> list[FinishReason | None]:
    return [one.append(token_id) for token_id in token_ids]


def test_sequence_ends_exactly_at_its_maximum_length() -> None:
    assert reasons(request(params=sampling(max_tokens=2)), 1, 2) == [None, FinishReason.LENGTH]


def test_sequence_stops_at_the_end_token() -> None:
    """The end token counts as generated."""
    one = request()
    assert reasons(one, 1, EOS) == [None, FinishReason.STOP]
    assert one.n_generated == 2


def test_reason_is_stop_when_the_end_token_is_the_last_allowed() -> None:
    """The answer is complete, so it was not cut."""
    assert reasons(request(params=sampling(max_tokens=2)), 1, EOS) == [None, FinishReason.STOP]


def test_ignored_end_token_does_not_end_the_sequence() -> None:
    """Stop tokens of the client still do."""
    one = request(params=sampling(ignore_eos=True, stop_token_ids=(7,)))
    assert reasons(one, EOS, 7) == [None, FinishReason.STOP]


def test_sequence_stops_at_a_stop_token() -> None:
    """The end token of the model still works."""
    assert reasons(request(params=sampling(stop_token_ids=(7, 8))), 8) == [FinishReason.STOP]
    assert reasons(request(params=sampling(stop_token_ids=(7, 8))), EOS) == [FinishReason.STOP]


def test_end_token_before_min_tokens_does_not_end_the_sequence() -> None:
    """With `min_tokens` 2, the third token is the first that may end the sequence."""
    assert reasons(request(params=sampling(min_tokens=2)), EOS, EOS, EOS) == [None, None, FinishReason.STOP]


def test_min_tokens_does_not_raise_the_maximum_length() -> None:
    assert reasons(request(params=sampling(min_tokens=9, max_tokens=1)), EOS) == [FinishReason.LENGTH]


def test_sequence_copies_the_prompt() -> None:
    """The list belongs to the submission."""
    asked = submission(n_prompt=4)
    one = Sequence(asked, arrival=0, max_sequence_tokens=10, eos_token_ids=())
    one.append(1)
    assert len(asked.prompt) == 4 and len(one.known) == 5


def repeating(max_tokens: int = 20, stop_token_ids: tuple[int, ...] = ()) -> Sequence:
    """Return a sequence that repeats itself: the drafts are 5, 6, 7, 8 and so on."""
    one = request(params=sampling(max_tokens=max_tokens, stop_token_ids=stop_token_ids), drafter=Drafter(6))
    one.known[:] = [5, 6, 7, 8, 5, 6, 7, 8]
    one.n_prompt = 4
    return one


def test_drafts_continue_the_repeated_text() -> None:
    """There are as many as fit, and none without a drafter."""
    assert repeating().draft(4) == [5, 6, 7, 8]
    assert list(request(n_prompt=8).draft(4)) == []


@pytest.mark.parametrize("drafter", [None, Drafter(6)], ids=["off", "ngram"])
def test_no_drafts_when_the_text_does_not_repeat_itself(drafter: Drafter | None) -> None:
    """With speculation and without."""
    one = request(n_prompt=8, drafter=drafter)
    one.learn(0, 0)
    assert list(one.draft(4)) == []


def test_drafts_stop_before_an_end_token() -> None:
    """The end token is sampled after the last draft."""
    assert repeating(stop_token_ids=(7,)).draft(6) == [5, 6]
    assert repeating(stop_token_ids=(5,)).draft(6) == []


def test_drafts_leave_room_for_the_token_sampled_after_them() -> None:
    """There is room for six tokens in all, and four are known."""
    assert repeating(max_tokens=6).draft(6) == [5]


def test_fewer_drafts_follow_wrong_ones() -> None:
    one = repeating()
    one.n_computed = 7
    one.learn(6, 1)
    assert one.draft(6) == [5, 6, 7, 8]


def test_index_of_drafts_is_dropped_with_the_blocks() -> None:
    """It takes memory, and is built again later."""
    one = repeating()
    assert one.draft(2) and one.drafter is not None and len(one.drafter.index)
    one.forget_computed()
    assert len(one.drafter.index) == 0
