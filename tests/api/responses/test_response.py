"""One response, streamed or whole, from the view of its writer."""

from __future__ import annotations

import json

import pytest

from sluiceway.api.responses.response import Response
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Delta, Progressed
from sluiceway.protocols.common.generation import Framer, GenerationRequest, TokenUsage
from sluiceway.protocols.native.requests import STREAM
from sluiceway.protocols.openai.requests import parse_completion
from sluiceway.response.backlog import START
from sluiceway.response.terms import Retention, StreamTerms
from sluiceway.sse.decoder import EventDecoder
from sluiceway.types import FinishReason, Held, Progress
from support.asgi_driver import completion, finished
from support.specs import PLAIN, NoWriter, RecordingUpstream, response_context, spec_of
from support.token_logprobs import logprobs_of_characters

REFUSAL = Refusal(status=503, code="engine_lost", message="Lost.")


KEPT = StreamTerms(retention=Retention())


def answer_of(terms: StreamTerms = PLAIN, **fields: object) -> Response:
    return opened(parse_completion(completion(**fields)), terms)


def opened(request: GenerationRequest, terms: StreamTerms, framer: Framer | None = None) -> Response:
    """A response that has a reader."""
    rids = range(10, 10 + request.n_choices)
    answer = Response(spec_of(request, framer, terms=terms, stream_id="s-1"), rids, response_context())
    answer.attach(START, NoWriter())
    return answer


def written(answer: Response) -> bytes:
    """What its reader takes now."""
    batch = answer.stream.take(1)
    if batch is None:
        return b""
    answer.stream.written(1, 0.0)
    return bytes(batch.data)


def test_a_prompt_counts_once_for_all_its_choices() -> None:
    """There are two prompts with three choices each. Generated tokens count when they come."""
    answer = answer_of(prompt=["a", "b"], n=3)
    for index in range(6):
        answer.accepted(index, Accepted(10 + index, 7 if index < 3 else 9, 4))
    answer.delta(0, Delta(10, "x", (1, 2, 3, 4, 5)))
    answer.finished(0, finished(10, FinishReason.STOP, 5))
    answer.delta(4, Delta(14, "", (6, 7, 8, 9, 10, 11)))
    assert answer.usage == TokenUsage(prompt_tokens=16, completion_tokens=11, cached_tokens=8)


def test_a_stream_has_its_head_when_the_last_sequence_is_accepted() -> None:
    """Until then it can be refused with a status."""
    answer = answer_of(stream=True, n=2)
    answer.accepted(0, Accepted(10, 1, 0))
    heads = [answer.head]
    answer.accepted(1, Accepted(11, 1, 0))
    heads.append(answer.head)
    assert heads[0] is None and heads[1] is not None and heads[1].status == 200


def test_a_whole_answer_collects_its_deltas() -> None:
    """It has the text and the token ids of each choice."""
    answer = answer_of(return_token_ids=True)
    answer.accepted(0, Accepted(10, 1, 0))
    answer.delta(0, Delta(10, "Hel", (1, 2)))
    answer.delta(0, Delta(10, "lo", (3,)))
    assert answer.head is None
    answer.finished(0, finished(10, completion_tokens=3))
    choice = json.loads(written(answer))["choices"][0]
    assert (choice["text"], choice["token_ids"], answer.stream.backlog.n_delivered) == ("Hello", [1, 2, 3], 3)
    assert answer.head is not None and (b"x-stream-id", b"s-1") in answer.head.headers  # type: ignore[unreachable]


def test_a_whole_answer_has_logprobs_if_the_request_asks_for_them() -> None:
    """They are those of all deltas whose text is in the answer."""
    answer = answer_of(logprobs=0)
    answer.accepted(0, Accepted(10, 1, 0))
    answer.delta(0, Delta(10, "H", (1, 2), logprobs_of_characters("He")))
    answer.delta(0, Delta(10, "e", ()))
    answer.finished(0, finished(10, completion_tokens=2))
    assert json.loads(written(answer))["choices"][0]["logprobs"]["tokens"] == ["H", "e"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_head_is_a_status(stream: bool) -> None:
    """A stream gets a status too."""
    answer = answer_of(stream=stream)
    answer.close(FinishReason.ERROR, REFUSAL)
    assert answer.head is not None and answer.head.status == 503 and answer.is_refused
    assert json.loads(written(answer))["error"]["code"] == "engine_lost"
    assert answer.outcome == "engine_lost"


def test_an_error_after_the_head_is_an_event() -> None:
    """The end of the stream follows it."""
    answer = answer_of(stream=True)
    answer.accepted(0, Accepted(10, 1, 0))
    answer.close(FinishReason.ERROR, REFUSAL)
    event, done = written(answer).decode().split("\n\n")[:2]
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_lost"
    assert done == "data: [DONE]"


def test_the_tokens_of_a_whole_answer_are_undelivered_when_it_fails() -> None:
    answer = answer_of()
    answer.accepted(0, Accepted(10, 1, 0))
    answer.delta(0, Delta(10, "x", (1, 2)))
    answer.close(FinishReason.ERROR, REFUSAL)
    assert (answer.stream.backlog.n_delivered, answer.stream.backlog.n_undelivered) == (0, 2)


def test_a_bad_end_of_one_choice_ends_them_all() -> None:
    """They have the reason of that end."""
    upstream = RecordingUpstream()
    spec = spec_of(parse_completion(completion(n=2)))
    answer = Response(spec, (10, 11), response_context(upstream=upstream))
    answer.attach(START, NoWriter())
    answer.finished(0, finished(10, FinishReason.DEADLINE))
    assert upstream.cancels == [((11,), FinishReason.DEADLINE)]
    assert answer.head is not None and answer.head.status == 504


def test_the_reason_in_the_log_is_disconnected_until_there_is_another() -> None:
    answer = answer_of()
    outcomes = [answer.outcome]
    answer.finished(0, finished(10, FinishReason.LENGTH))
    assert [*outcomes, answer.outcome] == ["disconnected", "length"]


def test_the_reason_is_disconnected_when_only_some_choices_had_ended() -> None:
    """The end of one choice is not the end of the response."""
    answer = answer_of(n=2, stream=True)
    for index in range(2):
        answer.accepted(index, Accepted(10 + index, 1, 0))
    answer.finished(0, finished(10, FinishReason.STOP))
    answer.stream.lost(1, 1.0)
    assert (answer.outcome, answer.record.reason) == ("disconnected", "disconnected")


@pytest.mark.parametrize(
    ("refusal", "param"),
    [
        (Refusal(status=400, code="context_length_exceeded", message="Too long."), "prompt"),
        (Refusal(status=400, code="invalid_value", message="No.", param="logit_bias"), "logit_bias"),
        (REFUSAL, None),
    ],
)
def test_the_prompt_is_named_when_the_engine_names_no_field(refusal: Refusal, param: str | None) -> None:
    """The engine knows tokens, and no field names."""
    answer = answer_of()
    answer.close(FinishReason.ERROR, refusal)
    assert json.loads(written(answer))["error"]["param"] == param


def test_events_have_ids_when_a_reader_may_come_back() -> None:
    """Each event has its own id, also several that are written together."""
    answer = answer_of(KEPT, stream=True, n=2, stream_options={"include_usage": True})
    answer.accepted(0, Accepted(10, 1, 0))
    answer.accepted(1, Accepted(11, 1, 0))
    answer.delta(0, Delta(10, "a", (1,)))
    answer.delta(1, Delta(11, "", (1,)))
    answer.delta(1, Delta(11, "b", (2,)))
    answer.finished(0, finished(10))
    answer.finished(1, finished(11))
    events = list(EventDecoder().feed(written(answer)))
    assert [event.last_event_id for event in events] == ["1", "2", "3", "4", "5", "6"]
    assert [event.data for event in events][-1] == "[DONE]" and "usage" in events[-2].data
    assert answer.record.last_event_id == 6 and answer.stream.backlog.n_delivered == 3


def test_a_whole_answer_has_no_ids_though_it_is_kept() -> None:
    """It is JSON."""
    answer = answer_of(KEPT)
    answer.accepted(0, Accepted(10, 1, 0))
    answer.finished(0, finished(10))
    assert json.loads(written(answer))["object"] == "text_completion"


def test_a_dismissed_reader_gets_an_error_without_an_id() -> None:
    """The error is no event of the stream, which goes on."""
    answer = answer_of(StreamTerms(retention=Retention(grace_s=9.0)), stream=True, max_tokens=10_000)
    answer.accepted(0, Accepted(10, 1, 0))
    written(answer)
    for _ in range(9_000):
        answer.delta(0, Delta(10, "x", (1,)))
    error, done = EventDecoder().feed(written(answer))
    assert json.loads(error.data)["error"]["code"] == "slow_client" and done.data == "[DONE]"
    assert error.last_event_id == ""


def test_released_holds_when_the_last_sequence_is_released() -> None:
    """What they held is remembered. It holds immediately if nothing is left."""
    answer, told = answer_of(n=2), list[str]()
    answer.released.wait(lambda: told.append("first"))
    answer.note_released(Held("running", 3))
    assert told == []
    answer.note_released(None)
    answer.released.wait(lambda: told.append("second"))
    assert told == ["first", "second"] and answer.held == [Held("running", 3)]


def test_a_response_is_broken_unless_it_finished_by_itself() -> None:
    """A running one is not broken. A refused, cancelled or abandoned one is."""
    running, complete, cancelled, left = (answer_of(stream=True) for _ in range(4))
    for answer in (running, complete, cancelled, left):
        answer.accepted(0, Accepted(10, 1, 0))
    complete.finished(0, finished(10, FinishReason.LENGTH, 5))
    cancelled.stream.close(FinishReason.CANCELLED)
    left.stream.lost(1, 1.0)
    refused = answer_of()
    refused.stream.rejected(REFUSAL)
    assert [answer.is_broken for answer in (running, complete, cancelled, left, refused)] == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("terms", "comment"), [(PLAIN, b": queued position=2\n\n"), (KEPT, b": queued position=2\n")], ids=["plain", "kept"]
)
def test_progress_can_be_a_comment(terms: StreamTerms, comment: bytes) -> None:
    """It is a block of its own only if no event has an id: some readers would take it for an event."""
    answer = answer_of(terms, stream=True, sluiceway={"progress": "comments"})
    answer.progressed(Progressed(10, Progress(3, 0, 9)))
    assert written(answer) == b"", "nothing can be said before the head"
    answer.accepted(0, Accepted(10, 9, 0))
    answer.progressed(Progressed(10, Progress(2, 0, 9)))
    assert written(answer) == comment
    answer.progressed(Progressed(10, Progress(0, 9, 9)))
    answer.delta(0, Delta(10, "x", (1,)))
    assert list(EventDecoder().feed(text := written(answer))) and text.startswith(b": prefill computed=9 of=9\n")


def test_progress_can_be_an_event() -> None:
    """In the native protocol, after `start`. It has no id and does not count."""
    request = STREAM.read(b'{"prompt": "a", "progress": "events"}', "m")
    answer = opened(request, KEPT, STREAM.framer(request, "s-1", 0))
    answer.accepted(0, Accepted(10, 9, 0))
    answer.progressed(Progressed(10, Progress(2, 0, 9)))
    start, queued = EventDecoder().feed(written(answer))
    assert (start.event, start.last_event_id, queued.event, queued.last_event_id) == ("start", "1", "queued", "1")
    assert queued.data == '{"position":2}' and answer.stream.backlog.end.event_id + 1 == 2


def test_a_record_tells_what_became_of_each_token() -> None:
    """While the response runs, and after its client has left."""
    answer = opened(parse_completion(completion(stream=True)), PLAIN)
    answer.accepted(0, Accepted(10, 5, 2))
    answer.delta(0, Delta(10, "x", (1, 2)))
    written(answer)
    answer.delta(0, Delta(10, "y", (3,)))
    record = answer.record
    assert (record.stream_id, record.state, record.reason, record.ended_s) == ("s-1", "open", None, None)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (5, 3, 2)
    assert (record.generated_tokens, record.delivered_tokens, record.wasted_tokens) == (3, 2, 0)
    assert (record.last_event_id, record.is_resumable) == (2, False)
    answer.leave(1)
    record = answer.record
    assert (record.state, record.reason, record.ended_s) == ("closed", "disconnected", 0.0)
    assert (record.generated_tokens, record.delivered_tokens, record.wasted_tokens) == (3, 2, 1)
