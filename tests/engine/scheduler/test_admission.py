"""What the engine refuses, and with which messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sluiceway.engine.scheduler.admission import refusal_of
from sluiceway.engine.scheduler.sequence import Submission
from sluiceway.errors import Refusal
from sluiceway.refusals import OVERLOADED
from support.scheduling import engine_config, sampling, submission


def refuse(*group: Submission, room: int = 100, live: Sequence[int] = (), **limits: Any) -> Refusal | None:
    return refusal_of(group, engine_config(**limits), live=live, room=room)


@pytest.mark.parametrize("n_prompt", [1, 30, 31])
def test_prompt_is_admitted_when_one_token_of_answer_fits(n_prompt: int) -> None:
    assert refuse(submission(n_prompt=n_prompt), max_model_len=32) is None


@pytest.mark.parametrize("n_prompt", [32, 33, 1000])
def test_prompt_is_refused_when_it_leaves_no_room_in_the_context(n_prompt: int) -> None:
    """The message has both numbers."""
    refusal = refuse(submission(n_prompt=n_prompt), max_model_len=32)
    assert refusal is not None
    assert (refusal.status, refusal.code, refusal.param) == (400, "context_length_exceeded", None)
    assert f"prompt is too long: it has {n_prompt} tokens" in refusal.message
    assert "This model's maximum context length is 32 tokens" in refusal.message


@pytest.mark.parametrize(("n_prompt", "is_refused"), [(7, False), (8, True), (9, True)])
def test_prompt_is_refused_when_it_leaves_no_room_in_the_whole_cache(n_prompt: int, is_refused: bool) -> None:
    """It has a message of its own, because a server with a larger cache could serve the prompt."""
    refusal = refuse(submission(n_prompt=n_prompt), n_blocks=2, block_tokens=4)
    assert (refusal is not None) == is_refused
    if refusal is not None:
        assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
        assert f"prompt is too long: it has {n_prompt} tokens" in refusal.message
        assert "This model's maximum context length is 8 tokens on this server, since its cache" in refusal.message


def test_prompt_is_refused_when_it_is_empty() -> None:
    refusal = refuse(submission(n_prompt=0))
    assert refusal is not None and (refusal.status, refusal.code) == (400, "invalid_value")
    assert "empty" in refusal.message


@pytest.mark.parametrize("token_id", [-1, 258, 10**9])
def test_prompt_is_refused_when_a_token_is_outside_the_vocabulary(token_id: int) -> None:
    """The model would read beyond its embedding table."""
    refusal = refuse(Submission(1, [0, token_id, 257], sampling(), 0))
    assert refusal is not None and (refusal.status, refusal.param) == (400, None)
    assert "vocabulary of 258" in refusal.message


@pytest.mark.parametrize("token_id", [-1, 258])
def test_bias_is_refused_when_its_token_is_outside_the_vocabulary(token_id: int) -> None:
    refusal = refuse(submission(params=sampling(logit_bias=((5, 1.0), (token_id, 1.0)))))
    assert refusal is not None and (refusal.status, refusal.param) == (400, "logit_bias")


@pytest.mark.parametrize("token_id", [-1, 258])
def test_stop_token_is_refused_when_it_is_outside_the_vocabulary(token_id: int) -> None:
    refusal = refuse(submission(params=sampling(stop_token_ids=(5, token_id))))
    assert refusal is not None and (refusal.status, refusal.param) == (400, "stop_token_ids")


def test_first_and_last_token_of_the_vocabulary_are_accepted() -> None:
    params = sampling(stop_token_ids=(0, 257), logit_bias=((0, 1.0), (257, -1.0)))
    assert refuse(Submission(1, [0, 257], params, 0)) is None


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_max_tokens_below_one_is_refused(max_tokens: int) -> None:
    refusal = refuse(submission(params=sampling(max_tokens=max_tokens)))
    assert refusal is not None and (refusal.status, refusal.param) == (400, "max_tokens")


def test_max_tokens_has_no_upper_limit() -> None:
    """It is clamped, not refused."""
    assert refuse(submission(params=sampling(max_tokens=10**18))) is None
    assert refuse(submission(params=sampling(max_tokens=None))) is None


def test_a_limit_of_one_token_is_accepted() -> None:
    assert refuse(submission(params=sampling(max_tokens=1))) is None


@pytest.mark.parametrize(("n", "is_refused"), [(2, False), (3, False), (4, True)])
def test_group_is_refused_as_a_whole_when_the_queue_is_full(n: int, is_refused: bool) -> None:
    """Sequences are counted, not requests."""
    refusal = refuse(*(submission(rid) for rid in range(n)), room=3)
    assert refusal == (OVERLOADED if is_refused else None)


def test_group_is_refused_as_a_whole_when_one_sequence_is_invalid() -> None:
    """At any position in the group."""
    assert refuse(submission(1), submission(2, n_prompt=0), submission(3)) is not None


def test_invalid_request_gets_400_even_when_the_queue_is_full() -> None:
    """Another attempt would not help."""
    refusal = refuse(submission(n_prompt=0), room=0)
    assert refusal is not None and refusal.status == 400


def test_group_is_refused_when_an_id_is_in_use() -> None:
    """By a live sequence, or by another of the group. The live sequence goes on."""
    for refusal in (refuse(submission(1), live=[1]), refuse(submission(1), submission(1))):
        assert refusal is not None and (refusal.status, refusal.code) == (500, "duplicate_id")
