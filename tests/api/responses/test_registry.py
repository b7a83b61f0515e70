"""Every answer is found by its caller, as long as it is held or remembered."""

from __future__ import annotations

import pytest

from sluiceway.api.responses.answer import Answer
from sluiceway.api.responses.registry import GONE, Streams
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.openai.completions import parse_completion
from sluiceway.refusals import OVERLOADED
from sluiceway.response.history import StreamRecord
from sluiceway.response.lifecycle import EndResponse
from sluiceway.response.replay import START
from sluiceway.response.terms import Retention, Terms
from sluiceway.types import FinishReason
from support.asgi_driver import completion
from support.orders import PLAIN, order_of

KEPT = Terms(retention=Retention(ttl_s=5.0))


class Nobody:
    """Somebody who is there and does nothing."""

    unsent_bytes = 0

    def wake(self) -> None: ...

    def abort(self) -> None: ...


def refusal_of(error: pytest.ExceptionInfo[RequestError]) -> Refusal:
    return error.value.refusal


def add(streams: Streams, stream_id: str = "s", caller: str = "", terms: Terms = PLAIN) -> Answer:
    """An answer of one sequence that somebody reads."""
    request = parse_completion(completion(stream=True))
    answer = Answer(order_of(request, terms=terms, stream_id=stream_id, caller=caller), (1,), streams.budget, 0.0)
    streams.add(answer)
    answer.readers[answer.stream.attached(START, 0.0)[0]] = Nobody()
    return answer


def leave(streams: Streams, answer: Answer, now_s: float = 1.0) -> bool:
    """Its reader leaves, whether or not it has everything."""
    answer.readers.clear()
    answer.stream.lost(1, now_s)
    return streams.settle(answer, now_s)


def end(answer: Answer) -> None:
    """It is accepted and cancelled."""
    answer.stream.accepted()
    answer.stream.close(FinishReason.CANCELLED)
    answer.head = None
    answer.stream.conclude(b"data: bye\n\n")


def complete(answer: Answer) -> None:
    """It is accepted, and ends by itself."""
    answer.stream.accepted()
    answer.stream.finished(1, FinishReason.STOP)
    answer.stream.conclude(b"data: bye\n\n")


@pytest.fixture
def streams() -> Streams:
    return Streams(StreamsConfig(idempotency_keys=2, idempotency_ttl_s=5.0))


def test_an_answer_is_found_by_its_caller_alone(streams: Streams) -> None:
    """Another one may have one of the same id."""
    mine, other = add(streams, caller="me"), add(streams, caller="you")
    assert streams.find("s", "me", 0.0) is mine and streams.find("s", "you", 0.0) is other
    assert streams.find("s", "they", 0.0) is None
    assert set(streams) == {mine, other} and streams.n_open == 2
    streams.check_free("t", "me")
    with pytest.raises(RequestError) as caught:
        streams.check_free("s", "me")
    assert refusal_of(caught).status == 409


def test_what_is_over_is_let_go_and_remembered(streams: Streams) -> None:
    """Once; its id is free again."""
    answer = add(streams)
    assert streams.settle(answer, 0.5)
    assert not leave(streams, answer)
    assert not streams.settle(answer, 1.0)
    found = streams.find("s", "", 2.0)
    assert isinstance(found, StreamRecord) and (found.state, found.reason) == ("closed", "disconnected")
    assert [record.stream_id for record in streams.records("", 2.0)] == ["s"]
    assert streams.n_open == 0 and list(streams) == []
    streams.check_free("s", "")


def test_what_is_kept_is_held_but_not_open(streams: Streams) -> None:
    """Until its time is over; somebody may come and read it."""
    answer = add(streams, terms=KEPT)
    end(answer)
    assert leave(streams, answer)
    assert streams.n_open == 0 and streams.find("s", "", 2.0) is answer
    streams.reopen(answer)
    assert streams.n_open == 1
    answer.stream.tick(9.0, {})
    assert not streams.settle(answer, 9.0) and streams.n_open == 0


def test_a_repeated_request_finds_its_answer(streams: Streams) -> None:
    """While it runs and while it is kept; after that it is gone, and then forgotten."""
    assert streams.claim("me", "key", b"body", "s", 0.0) is None
    answer = add(streams, caller="me", terms=KEPT)
    assert streams.claim("me", "key", b"body", "t", 0.0) is answer
    with pytest.raises(RequestError) as reused:
        streams.claim("me", "key", b"other body", "t", 0.0)
    assert refusal_of(reused).status == 422
    complete(answer)
    leave(streams, answer)
    assert streams.claim("me", "key", b"body", "t", 2.0) is answer
    answer.stream.tick(5.5, {})
    streams.settle(answer, 5.5)
    with pytest.raises(RequestError) as gone:
        streams.claim("me", "key", b"body", "t", 5.6)
    assert refusal_of(gone) == GONE
    assert streams.claim("me", "key", b"body", "t", 99.0) is None


def test_a_refused_request_may_be_sent_again_with_its_key(streams: Streams) -> None:
    """Whether it was refused here or upstream; nothing of it is remembered."""
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    streams.forget_key("s", "")
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    answer = add(streams, terms=KEPT)
    answer.stream.rejected(OVERLOADED)
    answer.end(FinishReason.ERROR, OVERLOADED)
    assert not leave(streams, answer)
    assert streams.claim("", "key", b"body", "s", 1.0) is None
    assert streams.find("s", "", 1.0) is None


def test_a_request_whose_client_has_left_may_be_sent_again_with_its_key(streams: Streams) -> None:
    """It was cancelled for that, and there is nothing to be replayed. What became of it is remembered."""
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    answer = add(streams, terms=KEPT)
    answer.stream.accepted()
    assert not leave(streams, answer)
    assert streams.claim("", "key", b"body", "t", 1.0) is None
    found = streams.find("s", "", 1.0)
    assert isinstance(found, StreamRecord) and found.reason == "disconnected"


def test_a_broken_answer_is_not_replayed(streams: Streams) -> None:
    """Whoever sends the request again has come for an answer; what was told can still be read by its id."""
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    answer = add(streams, terms=KEPT)
    end(answer)
    assert leave(streams, answer) and streams.find("s", "", 1.0) is answer
    assert streams.claim("", "key", b"body", "t", 1.0) is None
    again = add(streams, "t", terms=KEPT)
    assert streams.claim("", "key", b"body", "u", 1.0) is again
    answer.stream.tick(99.0, {})
    streams.settle(answer, 99.0)
    assert streams.claim("", "key", b"body", "u", 99.0) is again


def test_a_whole_answer_that_was_ended_early_is_remembered(streams: Streams) -> None:
    """It is told as a refusal, and its key is free, but it has cost something."""
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    answer = add(streams, terms=KEPT)
    answer.stream.accepted()
    for effect in answer.stream.close(FinishReason.CANCELLED):
        if isinstance(effect, EndResponse):
            answer.end(effect.reason, effect.refusal)
    assert answer.is_refused and leave(streams, answer)
    answer.stream.tick(99.0, {})
    assert not streams.settle(answer, 99.0)
    found = streams.find("s", "", 99.0)
    assert isinstance(found, StreamRecord) and (found.state, found.reason) == ("closed", "cancelled")
    assert streams.claim("", "key", b"body", "t", 99.0) is None


def test_an_id_with_a_key_is_not_lost_to_another_key(streams: Streams) -> None:
    """409, as without a key; and the first key still leads to its answer."""
    assert streams.claim("", "first", b"body", "s", 0.0) is None
    answer = add(streams, terms=KEPT)
    with pytest.raises(RequestError) as caught:
        streams.claim("", "second", b"other body", "s", 0.0)
    assert refusal_of(caught).code == "stream_id_taken"
    assert streams.claim("", "first", b"body", "s", 0.0) is answer


def test_a_key_does_not_lead_to_a_later_answer_of_the_same_id(streams: Streams) -> None:
    """That may be one to another request."""
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    answer = add(streams)
    complete(answer)
    answer.stream.take(1)
    answer.stream.written(1, 0.5)
    assert not leave(streams, answer)
    add(streams)
    with pytest.raises(RequestError) as gone:
        streams.claim("", "key", b"body", "t", 1.0)
    assert refusal_of(gone) == GONE
    assert streams.claim("", "key", b"body", "t", 99.0) is None


def test_keys_are_bounded(streams: Streams) -> None:
    """A new one is refused before anything is forgotten that is in its time."""
    assert streams.claim("", "a", b"body", "a", 0.0) is None
    assert streams.claim("you", "b", b"body", "b", 0.0) is None
    answer = add(streams, "a", terms=KEPT)
    complete(answer)
    assert leave(streams, answer)
    with pytest.raises(RequestError) as caught:
        streams.claim("", "c", b"body", "c", 1.0)
    refusal = refusal_of(caught)
    assert (refusal.status, refusal.code) == (503, "idempotency_keys_full")
    assert refusal.retry_after_s is not None and refusal.retry_after_s > 1.0
    assert streams.claim("", "a", b"body", "x", 1.0) is answer
    assert streams.claim("", "c", b"body", "c", 1.0 + refusal.retry_after_s) is None


def test_an_answer_that_finds_no_room_is_not_held() -> None:
    """Another caller's stays, which was first; a repetition of the new one is told that it is gone."""
    streams = Streams(StreamsConfig(kept_streams=1))
    assert streams.claim("you", "key", b"body", "b", 0.0) is None
    first, second = add(streams, "a", "me", terms=KEPT), add(streams, "b", "you", terms=KEPT)
    for answer in (first, second):
        complete(answer)
    assert leave(streams, first) and not leave(streams, second)
    assert streams.find("a", "me", 1.0) is first and second.record.state == "closed"
    with pytest.raises(RequestError) as gone:
        streams.claim("you", "key", b"body", "c", 1.0)
    assert refusal_of(gone) == GONE


def test_a_census_counts_what_is_held(streams: Streams) -> None:
    """By state, with their readers, and what waits for these."""
    answer = add(streams)
    add(streams, "t")
    answer.stream.delivered(b"data: x\n\n", 1)
    census = streams.census()
    assert census.by_state == {"open": 2, "detached": 0, "draining": 0, "closing": 0, "closed": 0}
    assert (census.readers, census.backlog_bytes, census.backlog_events) == (2, 9, 1)


def test_a_broken_answer_gives_its_id_away_when_its_request_comes_again(streams: Streams) -> None:
    """The key is free, and the id that the client has chosen goes with it; who reads the old one still reads it."""
    let_go: list[Answer] = []
    streams.when_let_go = let_go.append
    assert streams.claim("", "key", b"body", "s", 0.0) is None
    first = add(streams, terms=KEPT)
    end(first)
    assert streams.claim("", "key", b"body", "s", 1.0) is None
    assert (let_go, first.record.state, streams.n_open) == ([], "closing", 1)
    second = add(streams, terms=KEPT)
    assert streams.find("s", "", 1.0) is second
    assert not leave(streams, first)
    assert (first.record.state, streams.budget.n_events) == ("closed", 0)
    assert streams.find("s", "", 1.0) is second and streams.claim("", "key", b"body", "s", 1.0) is second
    end(second)
    assert leave(streams, second)
    assert streams.claim("", "key", b"body", "s", 2.0) is None
    assert (let_go, second.record.state) == ([second], "closed")
    found = streams.find("s", "", 2.0)
    assert isinstance(found, StreamRecord) and (found.reason, found.state) == ("cancelled", "closed")


def test_what_is_kept_gives_way_when_there_is_too_much_of_it() -> None:
    """The longest kept first; one that is read again counts as new when it is left."""
    streams = Streams(StreamsConfig(kept_streams=2))
    let_go: list[Answer] = []
    streams.when_let_go = let_go.append
    answers = [add(streams, stream_id, terms=KEPT) for stream_id in "abc"]
    for answer in answers:
        complete(answer)
    a, b, c = answers
    assert leave(streams, a) and leave(streams, b)
    streams.reopen(a)
    a.readers[a.stream.attached(START, 1.0)[0]] = Nobody()
    a.readers.clear()
    a.stream.lost(2, 1.0)
    assert streams.settle(a, 1.0) and leave(streams, c)
    assert let_go == [b] and list(streams) == [a, c]
    found = streams.find("b", "", 2.0)
    assert isinstance(found, StreamRecord) and found.state == "closed"


def test_what_gave_way_is_remembered_from_then_on() -> None:
    """Not from its end, which may be longer ago than anything is remembered."""
    streams = Streams(StreamsConfig(kept_streams=1, history_ttl_s=10.0))
    first, second = (add(streams, stream_id, terms=KEPT) for stream_id in "ab")
    for answer, left_s in ((first, 1.0), (second, 100.0)):
        complete(answer)
        assert leave(streams, answer, left_s)
    assert isinstance(streams.find("a", "", 109.0), StreamRecord)
    assert streams.find("a", "", 110.0) is None
