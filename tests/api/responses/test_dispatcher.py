"""Every event finds its answer, every answer ends once, and the accounts balance."""

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


class Reads:
    """A reader that takes nothing by itself, and counts how often it is woken."""

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
    reader: Reads | None = None,
    terms: StreamTerms = PLAIN,
    **fields: Any,
) -> Response:
    request = parse_completion(completion(n=n, stream=stream, **fields))
    answer, _ = api.dispatcher.open(spec_of(request, stream_id=next(_ids), terms=terms), reader or Reads())
    return answer


def leave(api: Api, answer: Response) -> None:
    """Its first reader leaves."""
    answer.leave(1)


def status_of(answer: Response) -> int | None:
    """The status that a writer sends now, None if it has to wait."""
    return None if answer.head is None else answer.head.status


def refusal_of(call: Callable[[], object]) -> Refusal:
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value.refusal


def written(api: Api, answer: Response) -> bytes:
    """Write all that waits, as a writer does."""
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


def test_a_request_goes_upstream_with_an_id_for_each_choice(api: Api, upstream: FakeUpstream) -> None:
    """Ids are not used again."""
    open_answer(api, n=2)
    open_answer(api)
    assert [message.rids for message in upstream.requests] == [(1, 2), (3,)]
    assert upstream.requests[0].prompts and upstream.requests[0].sampling.max_tokens == 16


def test_nothing_is_served_before_both_processes_are_up() -> None:
    """The model is being loaded, which is no fault."""
    api = Api(is_serving=False)
    for role in (Role.TOKENIZER, Role.ENGINE):
        assert refusal_of(lambda: open_answer(api)) == LOADING
        api.dispatcher.peer_up(role)
    assert refusal_of(lambda: open_answer(api)) == LOADING
    api.dispatcher.receive(EngineIsUp(FACTS))
    open_answer(api)


def test_nothing_is_held_when_the_tokenizer_is_gone(api: Api, upstream: FakeUpstream) -> None:
    """The push fails before its death is known."""
    upstream.is_gone = True
    assert refusal_of(lambda: open_answer(api)) == unavailable("tokenizer")
    api.assert_quiet()


@pytest.mark.parametrize(("max_tokens", "is_refused"), [(1_041, False), (1_042, True)])
def test_a_whole_answer_that_would_be_too_large_is_refused_before_it_is_made(max_tokens: int, is_refused: bool) -> None:
    """What can be computed is not found out by generating; a stream of the same is served."""
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
    """As what its readers have yet to get is; an error takes the place of all of it."""
    api = Api(streams=StreamsConfig(max_stream_bytes=400_000))
    answer = open_answer(api, stream=False)
    api.upstream.accept()
    api.upstream.speak("x" * 250_000)
    assert api.dispatcher.registry.census().backlog_bytes == 250_000
    api.upstream.speak("x" * 50_001)
    assert (status_of(answer), api.upstream.cancels) == (400, [Cancel((1,), FinishReason.ERROR)])
    assert b'"answer_too_large"' in written(api, answer)
    assert api.dispatcher.registry.census().backlog_bytes == 0


def test_a_request_is_refused_when_it_would_pass_the_bound() -> None:
    """Counted in sequences; those whose cancel is under way count, since the engine still holds them."""
    api = Api(max_sequences=3)
    first = open_answer(api, n=2)
    assert refusal_of(lambda: open_answer(api, n=2)) == OVERLOADED
    leave(api, first)
    assert refusal_of(lambda: open_answer(api, n=2)) == OVERLOADED
    api.upstream.end_cancelled(api.upstream.cancels[0])
    open_answer(api, n=3)


def test_a_request_that_can_never_fit_is_not_told_to_come_again() -> None:
    """It has more choices than the server takes from everybody together."""
    api = Api(max_sequences=3)
    refusal = refusal_of(lambda: open_answer(api, n=4))
    assert (refusal.status, refusal.param, refusal.retry_after_s) == (400, "n", None)
    api.assert_quiet()


# The ordinary way.


def test_a_stream_is_told_in_order(api: Api, upstream: FakeUpstream) -> None:
    """Head on acceptance, an event a delta, the end after the last sequence."""
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


def test_a_plain_answer_comes_whole(api: Api, upstream: FakeUpstream) -> None:
    """No head before the last choice has finished."""
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


def test_a_writer_is_woken_once_a_message(api: Api, upstream: FakeUpstream) -> None:
    """However many of its events came; and others are not."""
    reader, other = Reads(), Reads()
    open_answer(api, n=2, reader=reader)
    open_answer(api, reader=other)
    upstream.say(Accepted(1, 1, 0), Accepted(2, 1, 0), Delta(1, "a", (1,)), Delta(2, "b", (1,)), finished(1))
    assert (reader.wakes, other.wakes) == (1, 0)


def test_the_clock_is_read_at_tokens(api: Api, upstream: FakeUpstream) -> None:
    """First tokens from the opening on, gaps within a sequence; the tail of a text is no token."""
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
    """With the events of its step, or alone."""
    upstream.say(stats=engine_stats(running=3))
    assert api.metrics.engine is not None and api.metrics.engine.running == 3


def test_the_engine_says_what_it_can_hold() -> None:
    """For the list of models."""
    api = Api(is_serving=False)
    api.dispatcher.receive(EngineIsUp(FACTS))
    assert api.dispatcher.facts == FACTS


# Other ends.


def test_a_rejection_is_a_plain_error(api: Api, upstream: FakeUpstream) -> None:
    """Before any byte; nothing is cancelled and nothing is left."""
    answer = open_answer(api, n=3)
    upstream.reject(TOO_LONG)
    assert status_of(answer) == 400
    assert b"context_length_exceeded" in written(api, answer)
    leave(api, answer)
    assert not upstream.cancels and api.metrics.stats()["rejected"] == {"context_length_exceeded": 1}
    assert api.dispatcher.account()["rejected"] == 3
    assert (api.lines[-1]["event"], api.lines[-1]["status"]) == ("rejected", 400)
    api.assert_quiet()


def test_nobody_is_told_when_a_rejection_comes_after_the_client_left(api: Api, upstream: FakeUpstream) -> None:
    """It was on its way when the cancel went out; it settles the account."""
    answer = open_answer(api, n=2)
    leave(api, answer)
    upstream.reject(TOO_LONG)
    upstream.reject(TOO_LONG)
    assert api.dispatcher.account()["rejected"] == 2
    assert api.metrics.stats()["rejected"] == {"context_length_exceeded": 1}
    api.assert_quiet()


def test_an_error_in_the_stream_is_its_last_event(api: Api, upstream: FakeUpstream) -> None:
    """Also for the other choices, which are cancelled."""
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


def test_an_error_of_a_plain_answer_is_its_status(api: Api, upstream: FakeUpstream) -> None:
    """What was generated is dropped and counted as waste."""
    answer = open_answer(api, stream=False)
    upstream.accept()
    upstream.speak("x", n_tokens=4)
    upstream.finish(reason=FinishReason.DEADLINE)
    assert status_of(answer) == 504
    assert b"deadline_exceeded" in written(api, answer)
    assert (api.delivered_tokens, api.wasted_tokens) == (0, 4)


class BrokenFramer(CompletionFramer):
    """Fails where it is told to."""

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
def test_a_fault_in_framing_ends_one_answer_only(api: Api, upstream: FakeUpstream, fails_at: str) -> None:
    """With an error; the loop that serves all goes on, and only what has had no terminal is cancelled."""
    request = parse_completion(completion(stream=fails_at != "body", max_tokens=9))
    framer = BrokenFramer(request, "cmpl-1", 0)
    framer.fails_at = fails_at
    broken, _ = api.dispatcher.open(spec_of(request, framer, stream_id="broken"), Reads())
    other = open_answer(api)
    upstream.say(Accepted(1, 1, 0), Accepted(2, 1, 0), Delta(1, "x", (1,)), finished(1), finished(2))
    assert b"internal_error" in written(api, broken)
    assert written(api, other).endswith(b"[DONE]\n\n")
    assert upstream.cancels == ([Cancel((1,), FinishReason.ERROR)] if fails_at == "delta" else [])
    assert len([line for line in api.lines if line["event"] in ("framing failed", "event failed")]) == 1
    leave(api, broken)
    leave(api, other)
    api.assert_quiet()


def test_a_fault_at_one_event_ends_one_answer_only(
    api: Api, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is not in the framing; what comes in the same message is for others, and is served."""
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


# Leaving.


@pytest.mark.parametrize("leaves_after", ["open", "accept", "speak"])
def test_a_client_that_leaves_is_cancelled_at_once(api: Api, upstream: FakeUpstream, leaves_after: str) -> None:
    """In the same call, at every stage; again is nothing. The tombstone goes with the terminal."""
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


def test_what_the_tokenizer_dropped_is_wasted(api: Api) -> None:
    """Tokens that came after a stop string are in no delta."""
    api.dispatcher.receive(Events(events=[], wasted_tokens=2))
    assert api.wasted_tokens == 2


def test_what_was_written_to_nobody_is_not_delivered(api: Api, upstream: FakeUpstream) -> None:
    """The client left while the write was under way."""
    answer = open_answer(api)
    upstream.accept()
    upstream.speak("x", n_tokens=3)
    answer.stream.take(1)
    leave(api, answer)
    answer.written(1)
    assert (api.delivered_tokens, api.wasted_tokens) == (0, 3)


def test_a_natural_end_wins_when_it_was_first(api: Api, upstream: FakeUpstream) -> None:
    """The client left as the last token was made: one end, with the reason that the engine gave."""
    answer = open_answer(api)
    upstream.accept()
    leave(api, answer)
    upstream.finish(1, FinishReason.LENGTH)
    upstream.finish(1, FinishReason.DISCONNECTED)
    assert api.metrics.requests_finished[FinishReason.LENGTH].value == 1
    assert api.metrics.requests_finished[FinishReason.DISCONNECTED].value == 0
    api.assert_quiet()


def test_a_cancel_to_nobody_is_no_error(api: Api, upstream: FakeUpstream) -> None:
    """The tokenizer died; its sequences are settled when that is known."""
    answer = open_answer(api)
    upstream.is_gone = True
    leave(api, answer)
    api.dispatcher.peer_down(Role.TOKENIZER, hung=False)
    assert api.metrics.requests_finished[FinishReason.DISCONNECTED].value == 1
    api.assert_quiet()


def test_an_unknown_id_is_ignored(api: Api, upstream: FakeUpstream) -> None:
    """It was under way when what it belonged to went."""
    upstream.say(Accepted(77, 1, 0), Delta(77, "x", (1,)), finished(77), Rejected((77,), TOO_LONG))
    assert api.metrics.requests_finished[FinishReason.STOP].value == 0 and api.metrics.stats()["rejected"] == {}
    api.assert_quiet()


# Processes.


@pytest.mark.parametrize("role", [Role.TOKENIZER, Role.ENGINE])
def test_everything_ends_at_once_when_a_process_dies(api: Api, upstream: FakeUpstream, role: Role) -> None:
    """A stream by an event, what has no head by a status, a tombstone without a word. Nobody is asked."""
    readers = Reads(), Reads()
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


def test_what_is_open_goes_on_when_a_process_only_hangs(api: Api, upstream: FakeUpstream) -> None:
    """Nothing new meanwhile."""
    answer = open_answer(api)
    upstream.accept()
    api.dispatcher.peer_down(Role.ENGINE, hung=True)
    assert refusal_of(lambda: open_answer(api)) == unavailable("engine", "does not respond")
    assert answer.stream.state is State.OPEN
    api.dispatcher.peer_up(Role.ENGINE)
    upstream.finish()
    assert written(api, answer).endswith(b"[DONE]\n\n")


# Draining.


def test_nothing_new_is_opened_when_it_drains(api: Api, upstream: FakeUpstream) -> None:
    """What is open goes on."""
    answer = open_answer(api)
    api.dispatcher.drain()
    api.dispatcher.drain()
    assert [line["event"] for line in api.lines].count("draining") == 1
    refusal = refusal_of(lambda: open_answer(api))
    assert refusal == DRAINING and refusal.retry_after_s
    upstream.accept()
    upstream.finish()
    assert written(api, answer).endswith(b"[DONE]\n\n")


def test_what_is_left_is_ended_with_its_reason(api: Api, upstream: FakeUpstream) -> None:
    """The client is told, and the engine."""
    answer = open_answer(api)
    upstream.accept()
    api.dispatcher.end_all(FinishReason.DRAINING, DRAINING)
    assert b'"draining"' in written(api, answer)
    assert upstream.cancels == [Cancel((1,), FinishReason.DRAINING)]


def test_it_is_told_when_the_last_answer_is_over(api: Api) -> None:
    """Everyone who asked; at once when nothing is open."""
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


# Accounts.


def test_an_audit_comes_back_to_who_asked(api: Api) -> None:
    """Through the hub, by its number."""
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
    """Six seconds later; tokenizer and engine say what they know."""
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


def test_a_sequence_that_nobody_knows_ends_after_two_roll_calls(api: Api, upstream: FakeUpstream) -> None:
    """With an error, a line in the log, a count and a violation; its room comes back."""
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


def test_a_cancelled_sequence_that_nobody_knows_takes_no_room(api: Api, upstream: FakeUpstream) -> None:
    """Its end was lost on its way."""
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
    """As long as the sequence lives upstream."""
    answer = open_answer(api)
    upstream.accept()
    leave(api, answer)
    roll_call(api, live=(1,))
    assert upstream.cancels == [Cancel((1,), FinishReason.DISCONNECTED)] * 2
    assert api.dispatcher.violations() == ["api: 1 cancels were lost between processes, and repeated"]
    upstream.end_cancelled(upstream.cancels[-1])
    assert api.dispatcher.account()["tombstones"] == 0


def test_who_waits_for_long_is_not_lost(api: Api, upstream: FakeUpstream) -> None:
    """In the queue or while a prompt is encoded; nor is one that was missing once, or whose processes do not answer."""
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


def test_one_of_which_something_was_heard_is_not_asked_for(api: Api, upstream: FakeUpstream) -> None:
    """Nor is anybody asked when nothing is open."""
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


def test_a_client_that_left_just_now_has_lost_no_cancel(api: Api, upstream: FakeUpstream) -> None:
    """Its cancel is behind the question."""
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


class HubMachine(RuleBasedStateMachine):
    """Requests, steps, leaving clients and dying processes in any order: one end each, and balanced accounts."""

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


TestHub = HubMachine.TestCase
TestHub.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


def test_progress_reaches_its_reader(api: Api, upstream: FakeUpstream) -> None:
    """In one wake with what came before it; of a sequence that nobody knows nothing follows."""
    reader = Reads()
    answer = open_answer(api, reader=reader, sluiceway={"progress": "comments"})
    assert upstream.requests[-1].is_watched
    upstream.say(Accepted(1, 5, 0), Progressed(1, Progress(3, 0, 5)), Progressed(99, Progress(1, 0, 5)))
    assert reader.wakes == 1 and written(api, answer) == b": queued position=3\n\n"
    upstream.say(Progressed(1, Progress(2, 0, 5)))
    assert reader.wakes == 2 and written(api, answer) == b": queued position=2\n\n"


def test_nothing_is_watched_when_nobody_asks(api: Api, upstream: FakeUpstream) -> None:
    """The engine is spared the trouble; and of the prompt nothing is kept here once it is on its way."""
    answer = open_answer(api, prompt="a long story")
    assert not upstream.requests[-1].is_watched and upstream.requests[-1].prompts == (TextPrompt("a long story"),)
    assert answer.spec.generation.prompts == (TextPrompt(""),)
