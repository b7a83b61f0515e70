"""The states of a sequence, and what its tokens mean."""

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
    """Total: a next state, or an `InvariantError` and no other."""
    if (state, given_input) in TRANSITIONS:
        assert next_state(state, given_input) is TRANSITIONS[state, given_input]
    else:
        with pytest.raises(InvariantError, match=f"{state.value} cannot {given_input.value}"):
            next_state(state, given_input)


@pytest.mark.parametrize(("state", "command"), list(itertools.product(State, COMMANDS)))
def test_commands_are_in_the_table_for_every_state(state: State, command: Input) -> None:
    """A client need not know the state of a sequence."""
    assert (state, command) in TRANSITIONS


@settings(derandomize=True, max_examples=200)
@given(st.lists(st.sampled_from(Input), max_size=30))
def test_state_does_not_change_when_an_input_raises(inputs: list[Input]) -> None:
    """Any sequence of inputs: a valid state, never left after the end."""
    one = request()
    for given_input in inputs:
        before = one.state
        try:
            one.receive(given_input)
        except InvariantError:
            assert one.state is before
        assert before is not State.FINISHED or one.state is State.FINISHED
        assert not (one.is_queued and one.has_slot)


def test_all_is_to_be_computed_when_a_request_is_new() -> None:
    """Known tokens are the prompt, computed ones none."""
    one = request(n_prompt=5)
    assert (one.n_prompt, one.n_generated, one.n_computed, one.n_uncomputed) == (5, 0, 0, 5)
    assert one.state is State.WAITING and one.is_queued and not one.has_slot and not one.is_ready


def test_request_is_ready_when_it_runs_and_no_step_computes_for_it() -> None:
    """One step at a time."""
    one = request()
    one.receive(Input.SCHEDULE)
    assert one.is_ready and one.has_slot
    one.in_flight = 3
    assert not one.is_ready


def test_known_tokens_stay_when_the_computed_are_forgotten() -> None:
    """Nothing is lost with the blocks."""
    one = request(n_prompt=5)
    one.receive(Input.SCHEDULE)
    one.n_computed, one.in_flight = 5, 2
    one.append(9)
    one.forget_computed()
    assert (one.n_computed, one.n_uncomputed, one.n_generated) == (0, 6, 1)
    assert one.is_ready, "no step computes for it any more"


@pytest.mark.parametrize(
    ("max_tokens", "expected"),
    [(None, 10), (1, 5), (6, 10), (7, 10), (10**18, 10)],
)
def test_length_is_clamped_when_the_room_is_smaller(max_tokens: int | None, expected: int) -> None:
    """An upper limit, and never a promise."""
    assert request(n_prompt=4, params=sampling(max_tokens=max_tokens), limit=10).max_length == expected


def reasons(one: Sequence, *token_ids: int) -> list[FinishReason | None]:
    return [one.append(token_id) for token_id in token_ids]


def test_sequence_ends_when_its_length_is_reached() -> None:
    """Exactly at the limit."""
    assert reasons(request(params=sampling(max_tokens=2)), 1, 2) == [None, FinishReason.LENGTH]


def test_sequence_stops_when_the_model_says_so() -> None:
    """The end token counts as generated."""
    one = request()
    assert reasons(one, 1, EOS) == [None, FinishReason.STOP]
    assert one.n_generated == 2


def test_reason_is_stop_when_the_end_token_is_the_last_allowed() -> None:
    """A tie: the answer is complete, so it was not cut."""
    assert reasons(request(params=sampling(max_tokens=2)), 1, EOS) == [None, FinishReason.STOP]


def test_end_token_is_a_token_when_it_is_to_be_ignored() -> None:
    """Only the model's own end is ignored, not the client's."""
    one = request(params=sampling(ignore_eos=True, stop_token_ids=(7,)))
    assert reasons(one, EOS, 7) == [None, FinishReason.STOP]


def test_sequence_stops_when_a_stop_token_comes() -> None:
    """Beside the model's own."""
    assert reasons(request(params=sampling(stop_token_ids=(7, 8))), 8) == [FinishReason.STOP]
    assert reasons(request(params=sampling(stop_token_ids=(7, 8))), EOS) == [FinishReason.STOP]


def test_end_token_is_no_end_when_too_few_were_generated() -> None:
    """`min_tokens` 2: the third token is the first that may be an end."""
    assert reasons(request(params=sampling(min_tokens=2)), EOS, EOS, EOS) == [None, None, FinishReason.STOP]


def test_length_ends_the_sequence_when_more_tokens_are_wished_for() -> None:
    """`min_tokens` does not lift the limit."""
    assert reasons(request(params=sampling(min_tokens=9, max_tokens=1)), EOS) == [FinishReason.LENGTH]


def test_prompt_is_copied_when_a_request_is_made() -> None:
    """The submission belongs to somebody else."""
    asked = submission(n_prompt=4)
    one = Sequence(asked, arrival=0, max_sequence_tokens=10, eos_token_ids=())
    one.append(1)
    assert len(asked.prompt) == 4 and len(one.known) == 5


def repeating(max_tokens: int = 20, stop_token_ids: tuple[int, ...] = ()) -> Sequence:
    """Its known tokens stood before: 5, 6, 7, 8 follow, and so on."""
    one = request(params=sampling(max_tokens=max_tokens, stop_token_ids=stop_token_ids), drafter=Drafter(6))
    one.known[:] = [5, 6, 7, 8, 5, 6, 7, 8]
    one.n_prompt = 4
    return one


def test_drafts_are_what_may_follow() -> None:
    """As many as there is room for; none without a drafter."""
    assert repeating().draft(4) == [5, 6, 7, 8]
    assert list(request(n_prompt=8).draft(4)) == []


@pytest.mark.parametrize("drafter", [None, Drafter(6)], ids=["off", "ngram"])
def test_nothing_is_proposed_when_nothing_stood_before(drafter: Drafter | None) -> None:
    """With speculation or without."""
    one = request(n_prompt=8, drafter=drafter)
    one.learn(0, 0)
    assert list(one.draft(4)) == []


def test_nothing_is_proposed_from_an_end_token_on() -> None:
    """It is sampled behind the draft before it, and that is all."""
    assert repeating(stop_token_ids=(7,)).draft(6) == [5, 6]
    assert repeating(stop_token_ids=(5,)).draft(6) == []


def test_the_last_token_is_sampled_behind_the_drafts() -> None:
    """Room for six tokens in all, four of them there."""
    assert repeating(max_tokens=6).draft(6) == [5]


def test_drafts_become_fewer_when_they_were_wrong() -> None:
    """What the step found decides, and computed tokens are read."""
    one = repeating()
    one.n_computed = 7
    one.learn(6, 1)
    assert one.draft(6) == [5, 6, 7, 8]


def test_the_index_goes_with_the_blocks() -> None:
    """It takes memory; it is made again when they are."""
    one = repeating()
    assert one.draft(2) and one.drafter is not None and len(one.drafter.index)
    one.forget_computed()
    assert len(one.drafter.index) == 0
