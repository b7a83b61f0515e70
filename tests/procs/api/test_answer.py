"""One answer, streamed or whole, as its writer finds it."""

from __future__ import annotations

import json

import pytest

from sluiceway.errors import Refusal
from sluiceway.messages.to_api import Accepted, Delta
from sluiceway.procs.api.answer import Answer
from sluiceway.protocols.generation import Usage
from sluiceway.protocols.openai.completions import parse_completion
from sluiceway.protocols.openai.errors import error_body
from sluiceway.stream.session import CancelUpstream, EndResponse
from sluiceway.types import FinishReason
from support.asgi_driver import completion, finished

REFUSAL = Refusal(status=503, code="engine_lost", message="Lost.")


def answer_of(**fields: object) -> Answer:
    request = parse_completion(completion(**fields))
    framer = request.framer(response_id="cmpl-1", model="m", created=0)
    rids = range(10, 10 + request.generation.n_choices)
    return Answer(request.generation, framer, error_body, rids=rids, request_id="r", now_s=0.0)


def test_a_prompt_counts_once_however_many_choices_it_has() -> None:
    """Two prompts of three choices each; what was generated counts as it comes, whether or not a choice has ended."""
    answer = answer_of(prompt=["a", "b"], n=3)
    for index in range(6):
        answer.accepted(index, Accepted(10 + index, 7 if index < 3 else 9, 4))
    answer.delta(0, Delta(10, "x", (1, 2, 3, 4, 5)))
    answer.finished(0, finished(10, FinishReason.STOP, 5))
    answer.delta(4, Delta(14, "", (6, 7, 8, 9, 10, 11)))
    assert answer.usage == Usage(prompt_tokens=16, completion_tokens=11, cached_tokens=8)


def test_a_stream_has_its_head_when_the_last_sequence_is_accepted() -> None:
    """Before that it can still be refused by a status."""
    answer = answer_of(stream=True, n=2)
    answer.accepted(0, Accepted(10, 1, 0))
    heads = [answer.head]
    answer.accepted(1, Accepted(11, 1, 0))
    heads.append(answer.head)
    assert heads[0] is None and heads[1] is not None and heads[1].status == 200


def test_a_whole_answer_collects_its_deltas() -> None:
    """Text and token ids of each choice."""
    answer = answer_of(return_token_ids=True)
    answer.accepted(0, Accepted(10, 1, 0))
    answer.delta(0, Delta(10, "Hel", (1, 2)))
    answer.delta(0, Delta(10, "lo", (3,)))
    assert answer.finished(0, finished(10, completion_tokens=3)) == (EndResponse(None),)
    assert answer.head is None
    assert answer.end(None) == 0
    batch = answer.session.take()
    choice = json.loads(batch.data)["choices"][0]
    assert (choice["text"], choice["token_ids"], batch.n_tokens) == ("Hello", [1, 2, 3], 3)


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_head_is_a_status(stream: bool) -> None:
    """Also for what would have been a stream."""
    answer = answer_of(stream=stream)
    answer.end(REFUSAL)
    assert answer.head is not None and answer.head.status == 503
    assert json.loads(answer.session.take().data)["error"]["code"] == "engine_lost"
    assert answer.outcome == "engine_lost"


def test_an_error_after_the_head_is_an_event() -> None:
    """And the end of the stream after it."""
    answer = answer_of(stream=True)
    answer.accepted(0, Accepted(10, 1, 0))
    assert answer.end(REFUSAL) == 0
    event, done = answer.session.take().data.decode().split("\n\n")[:2]
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_lost"
    assert done == "data: [DONE]"


def test_dropped_tokens_are_told_when_a_whole_answer_fails() -> None:
    """They were made and nobody gets them."""
    answer = answer_of()
    answer.accepted(0, Accepted(10, 1, 0))
    answer.delta(0, Delta(10, "x", (1, 2)))
    assert answer.end(REFUSAL) == 2


def test_a_bad_end_of_one_choice_ends_them_all() -> None:
    """With the reason of that end."""
    answer = answer_of(n=2)
    cancel, end = answer.finished(0, finished(10, FinishReason.DEADLINE))
    assert cancel == CancelUpstream((11,), FinishReason.DEADLINE)
    assert isinstance(end, EndResponse) and end.refusal is not None and end.refusal.status == 504


def test_a_client_that_leaves_is_the_reason_until_there_is_another() -> None:
    """For the log."""
    answer = answer_of()
    outcomes = [answer.outcome]
    answer.finished(0, finished(10, FinishReason.LENGTH))
    assert [*outcomes, answer.outcome] == ["cancelled", "length"]


def test_waking_nobody_does_nothing() -> None:
    """A writer may not be there yet."""
    answer_of().wake()


@pytest.mark.parametrize(
    ("refusal", "param"),
    [
        (Refusal(status=400, code="context_length_exceeded", message="Too long."), "prompt"),
        (Refusal(status=400, code="invalid_value", message="No.", param="logit_bias"), "logit_bias"),
        (REFUSAL, None),
    ],
)
def test_the_prompt_is_the_field_at_fault_when_the_engine_names_none(refusal: Refusal, param: str | None) -> None:
    """The engine knows tokens, not what a protocol calls them."""
    answer = answer_of()
    answer.end(refusal)
    assert json.loads(answer.session.take().data)["error"]["param"] == param
