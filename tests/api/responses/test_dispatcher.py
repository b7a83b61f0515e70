"""Every event reaches its response, every response ends once, and the counts balance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluiceway.api.responses.response import Response
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.to_api import (
    Accepted,
    AuditReport,
    Delta,
    EngineIsUp,
    Events,
    Finished,
    Progressed,
    Rejected,
)
from sluiceway.ipc.messages.to_child import Role
from sluiceway.ipc.messages.to_tokenizer import AuditQuery, Cancel, Forget, TextPrompt, Tokenize
from sluiceway.protocols.common.generation import TokenUsage
from sluiceway.protocols.openai.framer import CompletionFramer
from sluiceway.protocols.openai.requests import parse_completion
from sluiceway.refusals import DRAINING, LOADING, OVERLOADED, lost, unavailable
from sluiceway.response.lifecycle import State
from sluiceway.response.terms import StreamTerms
from sluiceway.types import FinishReason, LiveSequence, Piece, Progress
from support.asgi_driver import FACTS, Api, FakeUpstream, completion, finished
from support.snapshots import engine_stats
from support.specs import PLAIN, spec_of

TOO_LONG = Refusal(status=400, code="context_length_exceeded", message="Too long.")


class CountingWriter:
    """A writer that takes nothing by itself, and counts how often it is woken."""

    unsent_bytes = 0

    def __init__(self) -> None:
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def write_now(self, frame: bytes) -> int | None:
        return None

    def abort(self) -> None:
        raise AssertionError("broken off")


_ids = map("stream-{}".format, itertools.count(1))


def open_answer(
    api: Api,
    *,
    n: int = 1,
    stream: bool = True,
    reader: CountingWriter | None = None,
    terms: StreamTerms = PLAIN,
    **fields: Any,
) -> Response:
    request = parse_completion(completion(n=n, stream=stream, **fields))
    answer, _ = api.dispatcher.open(spec_of(request, stream_id=next(_ids), terms=terms), reader or CountingWriter())
    return answer


def leave(api: Api, answer: Response) -> None:
    """Its first reader leaves."""
    answer.leave(1)


def status_of(answer: Response) -> int | None:
    """The status that a writer sends now; None if it has to wait."""
    return None if answer.head is None else answer.head.status


def refusal_of(call: Callable[[], object]) -> Refusal:
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value.refusal


def written(api: Api, answer: Response) -> bytes:
    """Write everything that waits, as a writer does."""
    batch = answer.stream.take(1)
    if batch is None:
        return b""
    answer.written(1)
    return bytes(batch.data)


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def upstream(api: Api) -> FakeUpstream:
    return api.upstream


# Opening.


def test_a_request_is_sent_with_an_id_for_each_choice(api: Api, upstream: FakeUpstream) -> None:
    """Ids are never used again."""
    open_answer(api, n=2)
    open_answer(api)
    assert [message.rids for message in upstream.requests] == [(1, 2), (3,)]
    assert upstream.requests[0].prompts and upstream.requests[0].sampling.max_tokens == 16


def test_nothing_is_served_before_both_processes_are_up() -> None:
    """The refusal says that the model is being loaded."""
    api = Api(is_serving=False)
    for role in (Role.TOKENIZER, Role.ENGINE):
        assert refusal_of(lambda: open_answer(api)) == LOADING
        api.dispatcher.peer_up(role)
    assert refusal_of(lambda: open_answer(api)) == LOADING
    api.dispatcher.receive(EngineIsUp(FACTS))
    open_answer(api)


def test_nothing_is_held_when_the_tokenizer_is_gone(api: Api, upstream: FakeUpstream) -> None:
    """The push fails before the death of the process is reported."""
    upstream.is_gone = True
    assert refusal_of(lambda: open_answer(api)) == unavailable("tokenizer")
    api.assert_quiet()


@pytest.mark.parametrize(("max_tokens", "is_refused"), [(1_041, False), (1_042, True)])
def test_a_whole_answer_that_would_be_too_large_is_refused_first(max_tokens: int, is_refused: bool) -> None:
    """The size can be computed before anything is generated. A stream of the same size is served."""
    api = Api(
        streams=StreamsConfig(max_stream_bytes=1_000_000)
    )  # of which three quarters, at 6 bytes a log-probability
    wishes: dict[str, Any] = {"n": 24, "max_tokens": max_tokens, "logprobs": 5}
    if is_refused:
        with pytest.raises(RequestError) as refused:
            open_answer(api, stream=False, **wishes)
        assert (refused.value.refusal.code, refused.value.refusal.param) == ("answer_too_large", "max_tokens")
        assert api.upstream.requests == [] and api.dispatcher.registry.n_open == 0
    else:
        open_answer(api, stream=False, **wishes)
    open_answer(api, stream=True, **wishes)


def test_a_whole_answer_is_in_the_budget_from_its_first_token() -> None:
    """Its bytes count like those of waiting events. An error replaces all of it."""
    api = Api(streams=StreamsConfig(max_stream_bytes=400_000))
    answer = open_answer(api, stream=False)
    api.upstream.accept()
    api.upstream.speak("x" * 250_000)
    assert api.dispatcher.registry.census().backlog_bytes == 250_000
    api.upstream.speak("x" * 50_001)
    assert (status_of(answer), api.upstream.cancels) == (400, [Cancel((1,), FinishReason.ERROR)])
    assert b'"answer_too_large"' in written(api, answer)
    assert api.dispatcher.registry.census().backlog_bytes == 0


def test_a_request_is_refused_when_there_are_too_many_sequences() -> None:
    """Cancelled sequences count until the engine has confirmed their end."""
    api = Api(max_sequences=3)
    first = open_answer(api, n=2)
    assert refusal_of(lambda: open_answer(api, n=2)) == OVERLOADED
    leave(api, first)
    assert refusal_of(lambda: open_answer(api, n=2)) == OVERLOADED
    api.upstream.end_cancelled(api.upstream.cancels[0])
    open_answer(api, n=3)


def test_a_request_that_can_never_fit_gets_no_advice_to_retry() -> None:
    """It has more choices than the server allows for all clients."""
    api = Api(max_sequences=3)
    refusal = refusal_of(lambda: open_answer(api, n=4))
    assert (refusal.status, refusal.param, refusal.retry_after_s) == (400, "n", None)
    api.assert_quiet()


# Responses that finish.


def test_a_stream_is_written_in_order(api: Api, upstream: FakeUpstream) -> None:
    """The head comes with the acceptance, then an event for each delta, and the end after the last sequence."""
    answer = open_answer(api)
    assert status_of(answer) is None
    upstream.accept()
    assert status_of(answer) == 200
    upstream.speak("Hel")
    assert b'"text":"Hel"' in written(api, answer)
    upstream.speak("lo")
    upstream.finish()
    assert written(api, answer).endswith(b"data: [DONE]\n\n")
    assert answer.stream.state is State.CLOSED
    leave(api, answer)
    assert not upstream.cancels
    assert api.metrics.requests_finished[FinishReason.STOP].value == 1
    assert api.delivered_tokens == 2
    api.assert_quiet()


def test_a_whole_answer_comes_at_its_end(api: Api, upstream: FakeUpstream) -> None:
    """There is no head before the last choice has finished."""
    answer = open_answer(api, n=2, stream=False)
    upstream.accept()
    upstream.speak("a", 1)
    upstream.speak("b", 2)
    upstream.finish(2)
    assert status_of(answer) is None
    upstream.finish(1)
    body = written(api, answer)
    assert answer.head is not None and (b"content-length", str(len(body)).encode()) in answer.head.headers
    assert body.index(b'"text":"a"') < body.index(b'"text":"b"')
    assert api.delivered_tokens == 2


def test_a_writer_is_woken_once_for_each_message(api: Api, upstream: FakeUpstream) -> None:
    """The number of its events in the message does not matter. Other writers are not woken."""
    reader, other = CountingWriter(), CountingWriter()
    open_answer(api, n=2, reader=reader)
    open_answer(api, reader=other)
    upstream.say(Accepted(1, 1, 0), Accepted(2, 1, 0), Delta(1, "a", (1,)), Delta(2, "b", (1,)), finished(1))
    assert (reader.wakes, other.wakes) == (1, 0)


def test_the_times_of_tokens_are_measured(api: Api, upstream: FakeUpstream) -> None:
    """TTFT counts from the opening, ITL within a sequence. Text without tokens does not count."""
    open_answer(api)
    api.now_s = 0.3
    upstream.accept()
    upstream.speak("a")
    api.now_s = 0.34
    upstream.speak("b")
    api.now_s = 9.0
    upstream.speak("tail", n_tokens=0)
    assert (api.metrics.time_to_first_token_seconds.count, api.metrics.time_to_first_token_seconds.total) == (1, 0.3)
    assert api.metrics.inter_token_seconds.count == 1
    assert api.metrics.inter_token_seconds.total == pytest.approx(0.04)


def test_a_snapshot_reaches_the_metrics(api: Api, upstream: FakeUpstream) -> None:
    """It comes with the events of its step, or alone."""
    upstream.say(stats=engine_stats(running=3))
    assert api.metrics.engine is not None and api.metrics.engine.running == 3


def test_the_facts_of_the_engine_are_kept() -> None:
    """The list of models shows them."""
    api = Api(is_serving=False)
    api.dispatcher.receive(EngineIsUp(FACTS))
    assert api.dispatcher.facts == FACTS


# Other ends.


def test_a_rejection_becomes_an_error_status(api: Api, upstream: FakeUpstream) -> None:
    """It comes before any byte. Nothing is cancelled, and nothing is left."""
    answer = open_answer(api, n=3)
    upstream.reject(TOO_LONG)
    assert status_of(answer) == 400
    assert b"context_length_exceeded" in written(api, answer)
    leave(api, answer)
    assert not upstream.cancels and api.metrics.stats()["rejected"] == {"context_length_exceeded": 1}
    assert api.dispatcher.account()["rejected"] == 3
    assert (api.lines[-1]["event"], api.lines[-1]["status"]) == ("rejected", 400)
    api.assert_quiet()


def test_a_rejection_after_the_client_has_left_only_counts(api: Api, upstream: FakeUpstream) -> None:
    """It was sent before the cancel arrived."""
    answer = open_answer(api, n=2)
    leave(api, answer)
    upstream.reject(TOO_LONG)
    upstream.reject(TOO_LONG)
    assert api.dispatcher.account()["rejected"] == 2
    assert api.metrics.stats()["rejected"] == {"context_length_exceeded": 1}
    api.assert_quiet()


def test_an_error_in_the_stream_is_its_last_event(api: Api, upstream: FakeUpstream) -> None:
    """It ends the other choices too, which are cancelled."""
    answer = open_answer(api, n=2)
    upstream.accept()
    upstream.finish(1, FinishReason.ERROR, refusal=lost("engine"))
    data = written(api, answer)
    assert b"engine_lost" in data and data.endswith(b"data: [DONE]\n\n")
    assert upstream.cancels == [Cancel((2,), FinishReason.ERROR)]
    upstream.end_cancelled(upstream.cancels[0])
    leave(api, answer)
    assert api.metrics.requests_finished[FinishReason.ERROR].value == 2
    api.assert_quiet()


def test_an_error_of_a_whole_answer_is_its_status(api: Api, upstream: FakeUpstream) -> None:
    """Its tokens are dropped, and count as wasted."""
    answer = open_answer(api, stream=False)
    upstream.accept()
    upstream.speak("x", n_tokens=4)
    upstream.finish(reason=FinishReason.DEADLINE)
    assert status_of(answer) == 504
    assert b"deadline_exceeded" in written(api, answer)
    assert (api.delivered_tokens, api.wasted_tokens) == (0, 4)


class BrokenFramer(CompletionFramer):
    """A framer that fails in the method that the test names."""

    fails_at = ""

    def delta(self, index: int, delta: Delta) -> bytes:
        return self._maybe("delta") or super().delta(index, delta)

    def finish(self, index: int, finished: Finished) -> bytes:
        return self._maybe("finish") or super().finish(index, finished)

    def end(self, usage: TokenUsage) -> bytes:
        return self._maybe("end") or super().end(usage)

    def body(self, finished: Sequence[Finished], usage: TokenUsage) -> list[Piece]:
        self._maybe("body")
        return super().body(finished, usage)

    def _maybe(self, name: str) -> bytes:
        if name == self.fails_at:
            raise ValueError("broken")
        return b""


@pytest.mark.parametrize("fails_at", ["delta", "finish", "end", "body"])
def test_a_fault_in_framing_ends_one_response_only(api: Api, upstream: FakeUpstream, fails_at: str) -> None:
    """It ends with an error. Only its running sequences are cancelled."""
    request = parse_completion(completion(stream=fails_at != "body", max_tokens=9))
    framer = BrokenFramer(request, "cmpl-1", 0)
    framer.fails_at = fails_at
    broken, _ = api.dispatcher.open(spec_of(request, framer, stream_id="broken"), CountingWriter())
    other = open_answer(api)
    upstream.say(Accepted(1, 1, 0), Accepted(2, 1, 0), Delta(1, "x", (1,)), finished(1), finished(2))
    assert b"internal_error" in written(api, broken)
    assert written(api, other).endswith(b"[DONE]\n\n")
    assert upstream.cancels == ([Cancel((1,), FinishReason.ERROR)] if fails_at == "delta" else [])
    assert len([line for line in api.lines if line["event"] in ("framing failed", "event failed")]) == 1
    leave(api, broken)
    leave(api, other)
    api.assert_quiet()


def test_a_fault_at_one_event_ends_one_response_only(
    api: Api, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault need not be in the framing. Other events of the same message are handled."""
    broken, other = open_answer(api), open_answer(api)
    upstream.say(Accepted(1, 1, 0), Accepted(2, 1, 0))
    delta = Response.delta

    def fail(response: Response, index: int, event: Delta) -> None:
        if response is broken:
            raise ZeroDivisionError
        delta(response, index, event)

    monkeypatch.setattr(Response, "delta", fail)
    upstream.say(Delta(1, "x", (1,)), Delta(2, "y", (1,)), finished(2))
    assert b"internal_error" in written(api, broken)
    told = written(api, other)
    assert told.endswith(b"[DONE]\n\n") and b'"y"' in told
    assert upstream.cancels == [Cancel((1,), FinishReason.ERROR)]
    assert [line["kind"] for line in api.lines if line["event"] == "event failed"] == ["Delta"]


# Clients that leave.


@pytest.mark.parametrize("leaves_after", ["open", "accept", "speak"])
def test_a_client_that_leaves_is_cancelled_immediately(api: Api, upstream: FakeUpstream, leaves_after: str) -> None:
    """It is cancelled once, at any stage. The route is kept until the engine confirms the end."""
    answer = open_answer(api, n=2)
    if leaves_after != "open":
        upstream.accept()
    if leaves_after == "speak":
        upstream.speak("x", n_tokens=3)
    api.now_s = 1.0
    leave(api, answer)
    leave(api, answer)
    assert upstream.cancels == [Cancel((1, 2), FinishReason.DISCONNECTED)]
    assert (api.dispatcher.registry.n_open, api.dispatcher.account()["tombstones"]) == (0, 2)
    upstream.speak("late", n_tokens=2)
    api.now_s = 1.5
    upstream.end_cancelled(upstream.cancels[0])
    assert api.metrics.requests_finished[FinishReason.DISCONNECTED].value == 2
    assert api.metrics.close_to_release_seconds[FinishReason.DISCONNECTED].total == pytest.approx(1.0)
    assert api.wasted_tokens == 2 + (3 if leaves_after == "speak" else 0)
    assert [line["event"] for line in api.lines].count("finished") == 1
    assert api.lines[-1]["reason"] == "disconnected"
    api.assert_quiet()


def test_tokens_that_the_tokenizer_dropped_are_wasted(api: Api) -> None:
    """Tokens after a stop string are in no delta."""
    api.dispatcher.receive(Events(events=[], wasted_tokens=2))
    assert api.wasted_tokens == 2


def test_an_event_for_a_client_that_left_is_not_delivered(api: Api, upstream: FakeUpstream) -> None:
    """The client left during the write."""
    answer = open_answer(api)
    upstream.accept()
    upstream.speak("x", n_tokens=3)
    answer.stream.take(1)
    leave(api, answer)
    answer.written(1)
    assert (api.delivered_tokens, api.wasted_tokens) == (0, 3)


def test_the_end_of_the_engine_counts_when_it_was_first(api: Api, upstream: FakeUpstream) -> None:
    """The client left when the last token was made. The response has one end, with the reason of the engine."""
    answer = open_answer(api)
    upstream.accept()
    leave(api, answer)
    upstream.finish(1, FinishReason.LENGTH)
    upstream.finish(1, FinishReason.DISCONNECTED)
    assert api.metrics.requests_finished[FinishReason.LENGTH].value == 1
    assert api.metrics.requests_finished[FinishReason.DISCONNECTED].value == 0
    api.assert_quiet()


def test_a_cancel_for_a_dead_tokenizer_is_no_error(api: Api, upstream: FakeUpstream) -> None:
    """Its sequences end when the death is reported."""
    answer = open_answer(api)
    upstream.is_gone = True
    leave(api, answer)
    api.dispatcher.peer_down(Role.TOKENIZER, hung=False)
    assert api.metrics.requests_finished[FinishReason.DISCONNECTED].value == 1
    api.assert_quiet()


def test_an_unknown_id_is_ignored(api: Api, upstream: FakeUpstream) -> None:
    """The message was on its way when its sequence ended."""
    upstream.say(Accepted(77, 1, 0), Delta(77, "x", (1,)), finished(77), Rejected((77,), TOO_LONG))
    assert api.metrics.requests_finished[FinishReason.STOP].value == 0 and api.metrics.stats()["rejected"] == {}
    api.assert_quiet()


# Processes.


@pytest.mark.parametrize("role", [Role.TOKENIZER, Role.ENGINE])
def test_all_responses_end_when_a_process_dies(api: Api, upstream: FakeUpstream, role: Role) -> None:
    """A stream ends with an event, a response without a head with a status. No message is sent."""
    readers = CountingWriter(), CountingWriter()
    streamed, waiting = (open_answer(api, reader=reader) for reader in readers)
    gone = open_answer(api)
    upstream.accept(1)
    upstream.say(stats=engine_stats(running=2))
    leave(api, gone)
    before = [reader.wakes for reader in readers]
    n_pushed = len(upstream.pushed)
    api.dispatcher.peer_down(role, hung=False)
    assert [reader.wakes for reader in readers] == [n + 1 for n in before]
    end = written(api, streamed)
    assert b"engine_lost" in end and f"The {role.value} stopped while it worked".encode() in end
    assert status_of(waiting) == 503
    assert len(upstream.pushed) == n_pushed
    for answer in (streamed, waiting):
        leave(api, answer)
    assert (
        api.metrics.requests_finished[FinishReason.ERROR].value,
        api.metrics.requests_finished[FinishReason.DISCONNECTED].value,
    ) == (2, 1)
    assert (api.metrics.engine is None) == (role is Role.ENGINE)
    upstream.finish(1)
    api.assert_quiet()
    assert refusal_of(lambda: open_answer(api)) == unavailable(role.value)
    api.dispatcher.peer_up(role)
    api.dispatcher.receive(EngineIsUp(FACTS))
    open_answer(api)


def test_open_responses_go_on_when_a_process_only_hangs(api: Api, upstream: FakeUpstream) -> None:
    """New requests are refused meanwhile."""
    answer = open_answer(api)
    upstream.accept()
    api.dispatcher.peer_down(Role.ENGINE, hung=True)
    assert refusal_of(lambda: open_answer(api)) == unavailable("engine", "does not respond")
    assert answer.stream.state is State.OPEN
    api.dispatcher.peer_up(Role.ENGINE)
    upstream.finish()
    assert written(api, answer).endswith(b"[DONE]\n\n")


# Draining.


def test_new_requests_are_refused_while_the_server_drains(api: Api, upstream: FakeUpstream) -> None:
    """Open responses go on."""
    answer = open_answer(api)
    api.dispatcher.drain()
    api.dispatcher.drain()
    assert [line["event"] for line in api.lines].count("draining") == 1
    refusal = refusal_of(lambda: open_answer(api))
    assert refusal == DRAINING and refusal.retry_after_s
    upstream.accept()
    upstream.finish()
    assert written(api, answer).endswith(b"[DONE]\n\n")


def test_open_responses_are_ended_with_a_reason(api: Api, upstream: FakeUpstream) -> None:
    """The clients get it, and the engine too."""
    answer = open_answer(api)
    upstream.accept()
    api.dispatcher.end_all(FinishReason.DRAINING, DRAINING)
    assert b'"draining"' in written(api, answer)
    assert upstream.cancels == [Cancel((1,), FinishReason.DRAINING)]


def test_waiting_functions_are_called_after_the_last_response(api: Api) -> None:
    """They are called immediately if no response is open."""
    told: list[str] = []
    first, second = open_answer(api), open_answer(api)
    api.dispatcher.registry.empty.wait(lambda: told.append("a"))
    api.dispatcher.registry.empty.wait(lambda: told.append("b"))
    leave(api, first)
    assert told == []
    leave(api, second)
    assert sorted(told) == ["a", "b"]
    api.dispatcher.registry.empty.wait(lambda: told.append("c"))
    assert told[-1] == "c"


# Audits.


def test_the_answer_to_an_audit_is_passed_on(api: Api) -> None:
    """Its number identifies the question."""
    reports: list[AuditReport] = []
    query_id = api.dispatcher.audits.ask(reports.append)
    report = AuditReport(
        query_id=query_id,
        engine=engine_stats(),
        live=(),
        violations=(),
        tokenizer_encoding=0,
        tokenizer_decoding=0,
    )
    api.dispatcher.receive(report)
    assert reports == [report]


# Lost messages.


def roll_call(api: Api, *, live: tuple[int, ...] = (), encoding: tuple[int, ...] = ()) -> None:
    """A roll call six seconds later, with the answers of tokenizer and engine."""
    api.now_s += 6.0
    api.dispatcher.call_roll()
    asked = [message for message in api.upstream.pushed if isinstance(message, AuditQuery)]
    api.dispatcher.receive(
        AuditReport(
            query_id=asked[-1].query_id if asked else 0,
            engine=engine_stats(),
            live=tuple(
                LiveSequence(rid=rid, state="waiting", known_tokens=1, computed_tokens=0, blocks=0) for rid in live
            ),
            violations=(),
            tokenizer_encoding=0,
            tokenizer_decoding=0,
            encoding=encoding,
        )
    )


def test_an_unknown_sequence_ends_after_two_roll_calls(api: Api, upstream: FakeUpstream) -> None:
    """It ends with an error, a line in the log, a count and a violation."""
    answer = open_answer(api)
    roll_call(api)
    assert answer.head is None and api.dispatcher.violations() == []
    roll_call(api)
    assert status_of(answer) == 503 and b"request_lost" in written(api, answer)
    assert Forget((1,)) in upstream.pushed and api.metrics.lost_sequences.value == 1
    assert api.dispatcher.violations() == ["api: 1 sequences were lost between processes, and ended"]
    assert any(line["event"] == "sequence lost" for line in api.lines)
    leave(api, answer)
    assert (api.dispatcher.account()["live"], api.dispatcher.account()["tombstones"]) == (0, 0)


def test_an_unknown_cancelled_sequence_is_forgotten(api: Api, upstream: FakeUpstream) -> None:
    """The message of its end was lost."""
    answer = open_answer(api, n=2)
    upstream.accept()
    leave(api, answer)
    roll_call(api)
    roll_call(api)
    assert (api.dispatcher.account()["tombstones"], api.metrics.requests_finished[FinishReason.DISCONNECTED].value) == (
        0,
        2,
    )
    assert api.dispatcher.violations() == ["api: 2 sequences were lost between processes, and ended"]


def test_a_cancel_that_was_lost_is_repeated(api: Api, upstream: FakeUpstream) -> None:
    """It is repeated as long as the engine or the tokenizer has the sequence."""
    answer = open_answer(api)
    upstream.accept()
    leave(api, answer)
    roll_call(api, live=(1,))
    assert upstream.cancels == [Cancel((1,), FinishReason.DISCONNECTED)] * 2
    assert api.dispatcher.violations() == ["api: 1 cancels were lost between processes, and repeated"]
    upstream.end_cancelled(upstream.cancels[-1])
    assert api.dispatcher.account()["tombstones"] == 0


def test_a_sequence_that_waits_long_is_not_lost(api: Api, upstream: FakeUpstream) -> None:
    """It may wait in the queue or for its encoding. One missing report is not enough, nor is no report."""
    answer = open_answer(api)
    roll_call(api, encoding=(1,))
    for _ in range(3):
        roll_call(api)
        roll_call(api, live=(1,))
    api.now_s += 6.0
    api.dispatcher.call_roll()
    api.now_s += 6.0
    api.dispatcher.call_roll()
    assert answer.head is None and not upstream.cancels and api.dispatcher.violations() == []
    upstream.is_gone = True
    api.dispatcher.call_roll()
    assert answer.head is None


def test_a_sequence_with_recent_events_is_not_asked_for(api: Api, upstream: FakeUpstream) -> None:
    """Without open sequences there is no question."""
    told: list[str] = []
    api.dispatcher.has_sequences.wait(lambda: told.append("first"))
    assert told == []
    open_answer(api)
    api.dispatcher.has_sequences.wait(lambda: told.append("second"))
    assert told == ["first", "second"]
    upstream.accept()
    api.now_s = 10.0
    upstream.speak("x")
    api.dispatcher.call_roll()
    assert not any(isinstance(message, AuditQuery) for message in upstream.pushed)


def test_a_recent_cancel_is_not_repeated(api: Api, upstream: FakeUpstream) -> None:
    """It is in the pipe behind the question."""
    answer = open_answer(api)
    upstream.accept()
    api.now_s = 6.0
    api.dispatcher.call_roll()
    leave(api, answer)
    (query,) = [message for message in upstream.pushed if isinstance(message, AuditQuery)]
    one = LiveSequence(rid=1, state="running", known_tokens=1, computed_tokens=0, blocks=1)
    api.dispatcher.receive(
        AuditReport(
            query_id=query.query_id,
            engine=engine_stats(),
            live=(one,),
            violations=(),
            tokenizer_encoding=0,
            tokenizer_decoding=0,
        )
    )
    assert len(upstream.cancels) == 1 and api.dispatcher.violations() == []


class DispatcherMachine(RuleBasedStateMachine):
    """Requests, steps, clients that leave and processes that die, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.api = Api(max_sequences=12)
        self.answers: list[Response] = []
        self.unsettled: dict[int, tuple[int, ...]] = {}
        """Sequences whose terminal upstream has yet to say, with their group."""
        self.accepted: set[int] = set()

    @rule(n=st.integers(1, 3), stream=st.booleans())
    def open(self, n: int, stream: bool) -> None:
        try:
            self.answers.append(open_answer(self.api, n=n, stream=stream))
        except RequestError as exc:
            assert exc.refusal == OVERLOADED
            return
        rids = self.api.upstream.requests[-1].rids
        self.unsettled |= dict.fromkeys(rids, rids)

    @precondition(lambda self: self.unsettled)
    @rule(data=st.data(), is_accepted=st.booleans())
    def admit(self, data: st.DataObject, is_accepted: bool) -> None:
        rids = self.unsettled[data.draw(st.sampled_from(sorted(self.unsettled)))]
        if self.accepted & set(rids) or any(rid not in self.unsettled for rid in rids):
            return
        if is_accepted:
            self.accepted |= set(rids)
            self.api.upstream.accept(*rids)
        else:
            self.api.upstream.say(Rejected(rids, TOO_LONG))
            for rid in rids:
                del self.unsettled[rid]

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), reason=st.sampled_from([None, *FinishReason]))
    def step(self, data: st.DataObject, reason: FinishReason | None) -> None:
        rid = data.draw(st.sampled_from(sorted(self.accepted)))
        self.api.upstream.speak("x", rid)
        if reason is not None:
            self.accepted.discard(rid)
            del self.unsettled[rid]
            self.api.upstream.finish(rid, reason)

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), leaves=st.booleans())
    def write(self, data: st.DataObject, leaves: bool) -> None:
        answer = data.draw(st.sampled_from(self.answers))
        if leaves:
            leave(self.api, answer)
            self.answers.remove(answer)
        else:
            written(self.api, answer)

    @rule()
    def die(self) -> None:
        self.api.dispatcher.peer_down(Role.ENGINE, hung=False)
        self.api.dispatcher.peer_up(Role.ENGINE)
        self.api.dispatcher.receive(EngineIsUp(FACTS))
        self.unsettled.clear()
        self.accepted.clear()
        assert all(answer.stream.state is not State.OPEN for answer in self.answers)

    @invariant()
    def balances(self) -> None:
        account = self.api.dispatcher.account()
        assert self.api.dispatcher.violations() == []
        assert account["sessions"] == len(self.answers)
        assert account["live"] + account["tombstones"] == len(self.unsettled) <= 12
        assert sum(self.api.metrics.stats()["finished"].values()) == account["finished"]

    def teardown(self) -> None:
        for answer in self.answers:
            leave(self.api, answer)
        self.api.upstream.say(*(finished(rid, FinishReason.CANCELLED) for rid in self.unsettled))
        self.api.assert_quiet()
        rids = list(itertools.chain.from_iterable(m.rids for m in self.api.upstream.pushed if isinstance(m, Tokenize)))
        assert len(rids) == len(set(rids))


TestHub = DispatcherMachine.TestCase
TestHub.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


def test_progress_reaches_its_reader(api: Api, upstream: FakeUpstream) -> None:
    """It comes in one wake with earlier events. For an unknown sequence nothing happens."""
    reader = CountingWriter()
    answer = open_answer(api, reader=reader, sluiceway={"progress": "comments"})
    assert upstream.requests[-1].is_watched
    upstream.say(Accepted(1, 5, 0), Progressed(1, Progress(3, 0, 5)), Progressed(99, Progress(1, 0, 5)))
    assert reader.wakes == 1 and written(api, answer) == b": queued position=3\n\n"
    upstream.say(Progressed(1, Progress(2, 0, 5)))
    assert reader.wakes == 2 and written(api, answer) == b": queued position=2\n\n"


def test_progress_is_only_reported_if_the_request_asks_for_it(api: Api, upstream: FakeUpstream) -> None:
    """The prompt is not kept here after it was sent."""
    answer = open_answer(api, prompt="a long story")
    assert not upstream.requests[-1].is_watched and upstream.requests[-1].prompts == (TextPrompt("a long story"),)
    assert answer.spec.generation.prompts == (TextPrompt(""),)
