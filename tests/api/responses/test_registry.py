"""Callers find their responses while these are held or remembered."""

from __future__ import annotations

import pytest

from sluiceway.api.responses.registry import GONE, ResponseRegistry
from sluiceway.api.responses.response import Response
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.openai.requests import parse_completion
from sluiceway.refusals import OVERLOADED
from sluiceway.response.backlog import START
from sluiceway.response.history import StreamRecord
from sluiceway.response.terms import Retention, StreamTerms
from sluiceway.types import FinishReason
from support.asgi_driver import completion
from support.specs import PLAIN, NoWriter, response_context, spec_of

KEPT = StreamTerms(retention=Retention(ttl_s=5.0))


class Registry(ResponseRegistry):
    """A registry whose clock the test sets."""

    def __init__(self, config: StreamsConfig) -> None:
        self.now_s = 0.0
        super().__init__(config, lambda: self.now_s)

    def at(self, now_s: float) -> Registry:
        self.now_s = now_s
        return self

    def holds(self, response: Response) -> bool:
        return any(one is response for one in self)


def refusal_of(error: pytest.ExceptionInfo[RequestError]) -> Refusal:
    return error.value.refusal


def add(streams: Registry, stream_id: str = "s", caller: str = "", terms: StreamTerms = PLAIN) -> Response:
    """A response of one sequence, with a reader."""
    request = parse_completion(completion(stream=True))
    spec = spec_of(request, terms=terms, stream_id=stream_id, caller=caller)
    answer = Response(spec, (1,), response_context(streams))
    streams.add(answer)
    answer.attach(START, NoWriter())
    return answer


def leave(streams: Registry, answer: Response, now_s: float = 1.0) -> bool:
    """Its reader leaves, with or without all events. Returns whether the response is still held."""
    streams.at(now_s)
    answer.leave(1)
    return streams.holds(answer)


def settled(streams: Registry, answer: Response, now_s: float) -> bool:
    """Time passes. Returns whether the response is still held."""
    streams.at(now_s).changed(answer, is_over=answer.is_over)
    return streams.holds(answer)


def end(answer: Response) -> None:
    """The response is accepted and cancelled."""
    answer.stream.accepted()
    answer.stream.close(FinishReason.CANCELLED)
    answer.head = None
    answer.stream.conclude(b"data: bye\n\n")


def complete(answer: Response) -> None:
    """The response is accepted, and finishes by itself."""
    answer.stream.accepted()
    answer.stream.finished(1, FinishReason.STOP)
    answer.stream.conclude(b"data: bye\n\n")


@pytest.fixture
def streams() -> Registry:
    return Registry(StreamsConfig(idempotency_keys=2, idempotency_ttl_s=5.0))


def test_a_response_is_found_by_its_caller_alone(streams: Registry) -> None:
    """Another caller may have a response with the same id."""
    mine, other = add(streams, caller="me"), add(streams, caller="you")
    assert streams.at(0.0).find("s", "me") is mine and streams.at(0.0).find("s", "you") is other
    assert streams.at(0.0).find("s", "they") is None
    assert set(streams) == {mine, other} and streams.n_open == 2
    streams.check_free("t", "me")
    with pytest.raises(RequestError) as caught:
        streams.check_free("s", "me")
    assert refusal_of(caught).status == 409


def test_a_response_that_is_over_is_evicted_and_remembered(streams: Registry) -> None:
    """It is remembered once, and its id is free again."""
    answer = add(streams)
    assert settled(streams, answer, 0.5)
    assert not leave(streams, answer)
    assert not settled(streams, answer, 1.0)
    found = streams.at(2.0).find("s", "")
    assert isinstance(found, StreamRecord) and (found.state, found.reason) == ("closed", "disconnected")
    assert [record.stream_id for record in streams.at(2.0).records("")] == ["s"]
    assert streams.n_open == 0 and list(streams) == []
    streams.check_free("s", "")


def test_a_kept_response_is_held_but_not_open(streams: Registry) -> None:
    """Until its time is over, a reader may come."""
    answer = add(streams, terms=KEPT)
    end(answer)
    assert leave(streams, answer)
    assert streams.n_open == 0 and streams.at(2.0).find("s", "") is answer
    streams.opened(answer)
    assert streams.n_open == 1
    answer.stream.tick(9.0, {})
    assert not settled(streams, answer, 9.0) and streams.n_open == 0


def test_a_repeated_request_finds_its_response(streams: Registry) -> None:
    """It finds it while the response runs or is kept. Later it is gone, and then forgotten."""
    assert streams.at(0.0).claim("me", "key", b"body", "s") is None
    answer = add(streams, caller="me", terms=KEPT)
    assert streams.at(0.0).claim("me", "key", b"body", "t") is answer
    with pytest.raises(RequestError) as reused:
        streams.at(0.0).claim("me", "key", b"other body", "t")
    assert refusal_of(reused).status == 422
    complete(answer)
    leave(streams, answer)
    assert streams.at(2.0).claim("me", "key", b"body", "t") is answer
    answer.stream.tick(5.5, {})
    settled(streams, answer, 5.5)
    with pytest.raises(RequestError) as gone:
        streams.at(5.6).claim("me", "key", b"body", "t")
    assert refusal_of(gone) == GONE
    assert streams.at(99.0).claim("me", "key", b"body", "t") is None


def test_a_refused_request_may_be_sent_again_with_its_key(streams: Registry) -> None:
    """The API process or the engine has refused it. Nothing of it is remembered."""
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    streams.forget_key("s", "")
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    answer = add(streams, terms=KEPT)
    answer.rejected(OVERLOADED)
    assert not leave(streams, answer)
    assert streams.at(1.0).claim("", "key", b"body", "s") is None
    assert streams.at(1.0).find("s", "") is None


def test_a_request_whose_client_has_left_may_be_sent_again_with_its_key(streams: Registry) -> None:
    """It was cancelled, so there is nothing to replay. Its record is remembered."""
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    answer = add(streams, terms=KEPT)
    answer.stream.accepted()
    assert not leave(streams, answer)
    assert streams.at(1.0).claim("", "key", b"body", "t") is None
    found = streams.at(1.0).find("s", "")
    assert isinstance(found, StreamRecord) and found.reason == "disconnected"


def test_a_broken_response_is_not_replayed(streams: Registry) -> None:
    """The client gets a new answer. The events of the first response can still be read by its id."""
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    answer = add(streams, terms=KEPT)
    end(answer)
    assert leave(streams, answer) and streams.at(1.0).find("s", "") is answer
    assert streams.at(1.0).claim("", "key", b"body", "t") is None
    again = add(streams, "t", terms=KEPT)
    assert streams.at(1.0).claim("", "key", b"body", "u") is again
    answer.stream.tick(99.0, {})
    settled(streams, answer, 99.0)
    assert streams.at(99.0).claim("", "key", b"body", "u") is again


def test_a_whole_answer_that_was_ended_early_is_remembered(streams: Registry) -> None:
    """Its client got a refusal, and its key is free, but tokens were generated."""
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    answer = add(streams, terms=KEPT)
    answer.stream.accepted()
    answer.close(FinishReason.CANCELLED)
    assert answer.is_refused and leave(streams, answer)
    answer.stream.tick(99.0, {})
    assert not settled(streams, answer, 99.0)
    found = streams.at(99.0).find("s", "")
    assert isinstance(found, StreamRecord) and (found.state, found.reason) == ("closed", "cancelled")
    assert streams.at(99.0).claim("", "key", b"body", "t") is None


def test_another_key_cannot_take_an_id(streams: Registry) -> None:
    """The answer is 409, as without a key. The first key still leads to its response."""
    assert streams.at(0.0).claim("", "first", b"body", "s") is None
    answer = add(streams, terms=KEPT)
    with pytest.raises(RequestError) as caught:
        streams.at(0.0).claim("", "second", b"other body", "s")
    assert refusal_of(caught).code == "stream_id_taken"
    assert streams.at(0.0).claim("", "first", b"body", "s") is answer


def test_a_key_does_not_lead_to_a_later_response_with_the_same_id(streams: Registry) -> None:
    """That may be the response to another request."""
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    answer = add(streams)
    complete(answer)
    answer.stream.take(1)
    answer.stream.written(1, 0.5)
    assert not leave(streams, answer)
    add(streams)
    with pytest.raises(RequestError) as gone:
        streams.at(1.0).claim("", "key", b"body", "t")
    assert refusal_of(gone) == GONE
    assert streams.at(99.0).claim("", "key", b"body", "t") is None


def test_keys_are_bounded(streams: Registry) -> None:
    """A new key is refused before a valid one is forgotten."""
    assert streams.at(0.0).claim("", "a", b"body", "a") is None
    assert streams.at(0.0).claim("you", "b", b"body", "b") is None
    answer = add(streams, "a", terms=KEPT)
    complete(answer)
    assert leave(streams, answer)
    with pytest.raises(RequestError) as caught:
        streams.at(1.0).claim("", "c", b"body", "c")
    refusal = refusal_of(caught)
    assert (refusal.status, refusal.code) == (503, "idempotency_keys_full")
    assert refusal.retry_after_s is not None and refusal.retry_after_s > 1.0
    assert streams.at(1.0).claim("", "a", b"body", "x") is answer
    assert streams.at(1.0 + refusal.retry_after_s).claim("", "c", b"body", "c") is None


def test_a_response_without_room_is_not_held() -> None:
    """The earlier response of another caller stays. A repetition of the new request gets `stream_gone`."""
    streams = Registry(StreamsConfig(kept_streams=1))
    assert streams.at(0.0).claim("you", "key", b"body", "b") is None
    first, second = add(streams, "a", "me", terms=KEPT), add(streams, "b", "you", terms=KEPT)
    for answer in (first, second):
        complete(answer)
    assert leave(streams, first) and not leave(streams, second)
    assert streams.at(1.0).find("a", "me") is first and second.record.state == "closed"
    with pytest.raises(RequestError) as gone:
        streams.at(1.0).claim("you", "key", b"body", "c")
    assert refusal_of(gone) == GONE


def test_a_census_counts_what_is_held(streams: Registry) -> None:
    """It has the states, the readers, and what waits for these."""
    answer = add(streams)
    add(streams, "t")
    answer.stream.delivered(b"data: x\n\n", 1)
    census = streams.census()
    assert census.by_state == {"open": 2, "detached": 0, "draining": 0, "closing": 0, "closed": 0}
    assert (census.readers, census.backlog_bytes, census.backlog_events) == (2, 9, 1)


def test_a_repeated_request_takes_the_id_of_a_broken_response(streams: Registry) -> None:
    """Its key is free, and so is the id that the client chose. Readers of the old response continue."""
    assert streams.at(0.0).claim("", "key", b"body", "s") is None
    first = add(streams, terms=KEPT)
    end(first)
    assert streams.at(1.0).claim("", "key", b"body", "s") is None
    assert (first.record.state, streams.n_open) == ("closing", 1)
    second = add(streams, terms=KEPT)
    assert streams.at(1.0).find("s", "") is second
    assert not leave(streams, first)
    assert (first.record.state, streams.budget.n_events) == ("closed", 0)
    assert streams.at(1.0).find("s", "") is second and streams.at(1.0).claim("", "key", b"body", "s") is second
    end(second)
    assert leave(streams, second)
    assert streams.at(2.0).claim("", "key", b"body", "s") is None
    assert second.record.state == "closed"
    found = streams.at(2.0).find("s", "")
    assert isinstance(found, StreamRecord) and (found.reason, found.state) == ("cancelled", "closed")


def test_kept_responses_are_evicted_when_there_are_too_many() -> None:
    """The oldest one goes first. A response that is read again counts as new when its reader leaves."""
    streams = Registry(StreamsConfig(kept_streams=2))
    answers = [add(streams, stream_id, terms=KEPT) for stream_id in "abc"]
    for answer in answers:
        complete(answer)
    a, b, c = answers
    assert leave(streams, a) and leave(streams, b)
    a.leave(a.attach(START, NoWriter()))
    assert streams.holds(a) and leave(streams, c)
    assert b.record.state == "closed" and list(streams) == [a, c]
    found = streams.at(2.0).find("b", "")
    assert isinstance(found, StreamRecord) and found.state == "closed"


def test_evicted_responses_are_remembered_from_then_on() -> None:
    """The time of the record counts from the eviction, not from the end."""
    streams = Registry(StreamsConfig(kept_streams=1, history_ttl_s=10.0))
    first, second = (add(streams, stream_id, terms=KEPT) for stream_id in "ab")
    for answer, left_s in ((first, 1.0), (second, 100.0)):
        complete(answer)
        assert leave(streams, answer, left_s)
    assert isinstance(streams.at(109.0).find("a", ""), StreamRecord)
    assert streams.at(110.0).find("a", "") is None
