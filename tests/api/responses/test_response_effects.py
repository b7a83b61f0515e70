"""Effects of a stream are carried out: for the engine, for readers, and in time."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from sluiceway.api.responses.registry import FREED_BYTES, TICK_S
from sluiceway.api.responses.response import Response
from sluiceway.config import StreamsConfig
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.ipc.messages.to_tokenizer import Cancel
from sluiceway.protocols.common.pieces import PIECE_BYTES
from sluiceway.protocols.openai.requests import parse_completion
from sluiceway.response.backlog import Cursor, Missed
from sluiceway.response.history import StreamRecord
from sluiceway.response.lifecycle import State
from sluiceway.response.policy import POLICIES, PolicyName, Pressure
from sluiceway.response.terms import Retention, StreamTerms
from sluiceway.types import FinishReason, Flow
from support.asgi_driver import Api, completion
from support.specs import spec_of

MARKS = {"low_events": 1, "high_events": 3, "limit_events": 100}
PAUSE = StreamTerms(policy=msgspec.structs.replace(POLICIES[PolicyName.PAUSE], **MARKS, stall_timeout_s=20.0))
DEGREES = StreamTerms(
    policy=msgspec.structs.replace(
        POLICIES[PolicyName.PAUSE_PARK_DROP], **MARKS, park_after_s=2.0, drop_after_s=5.0, stall_timeout_s=20.0
    )
)
KEPT = StreamTerms(policy=DEGREES.policy, retention=Retention(ttl_s=30.0))
LONG_KEPT = StreamTerms(policy=DEGREES.policy, retention=Retention(max_bytes=1 << 30))
DETACHED = StreamTerms(policy=DEGREES.policy, retention=Retention(grace_s=10.0, ttl_s=30.0))

_ids = map("s-{}".format, itertools.count(1))


class Client:
    """A client that reads when the test says so, or with every wake."""

    def __init__(self, api: Api, *, reads: bool = False) -> None:
        self._api = api
        self.answer: Response
        self.reader_id = 0
        self.reads = reads
        self.got = b""
        self.unsent_bytes = 0
        self.is_cut_off = False

    def wake(self) -> None:
        if self.reads:
            self.read()

    def write_now(self, frame: bytes) -> int | None:
        if not self.reads:
            return None
        self.got += frame
        return self.unsent_bytes

    def abort(self) -> None:
        self.is_cut_off = True

    def read(self) -> bytes:
        batch = self.answer.stream.take(self.reader_id)
        if batch is None:
            return b""
        self.got += batch.data
        self.answer.written(self.reader_id, self.unsent_bytes)
        return bytes(batch.data)

    def leave(self) -> None:
        self.answer.leave(self.reader_id)


def opened(api: Api, terms: StreamTerms = PAUSE, *, reads: bool = False, n_tokens: int = 0) -> Client:
    """A stream that was accepted and has this many tokens."""
    request = parse_completion(completion(stream=True, max_tokens=10_000))
    client = Client(api, reads=reads)
    client.answer, client.reader_id = api.dispatcher.open(spec_of(request, terms=terms, stream_id=next(_ids)), client)
    api.upstream.accept()
    for _ in range(n_tokens):
        api.upstream.speak("x")
    return client


def joined(api: Api, first: Client, *, reads: bool = False) -> Client:
    """One more reader of the same stream, from its beginning."""
    client = Client(api, reads=reads)
    client.answer = first.answer
    place = first.answer.stream.cursor_after(0)
    assert isinstance(place, Cursor)
    client.reader_id = first.answer.attach(place, client)
    return client


def wait(api: Api, seconds: float) -> None:
    """Let time pass, tick by tick."""
    for _ in range(round(seconds / TICK_S)):
        api.now_s += TICK_S
        api.dispatcher.registry.tick()


@pytest.fixture
def api() -> Api:
    return Api()


def test_a_reader_behind_pauses_its_request_until_it_has_caught_up(api: Api) -> None:
    """The engine gets each change once."""
    client = opened(api, n_tokens=6)
    assert api.upstream.pushed[1:] == [SetFlow((1,), Flow.PAUSE)]
    client.read()
    assert api.upstream.pushed[1:] == [SetFlow((1,), Flow.PAUSE), SetFlow((1,), Flow.RUN)]
    actions = api.metrics.stats()["streams"]["actions"]
    assert (actions["pause"], actions["resume"], actions["park"], actions["drop"]) == (1, 1, 0, 0)


def test_a_slow_reader_parks_its_request_and_is_dropped(api: Api) -> None:
    """Its policy asks for both. The reader gets an error event."""
    client = opened(api, DEGREES, n_tokens=6)
    wait(api, 2.5)
    assert api.upstream.pushed[1:] == [SetFlow((1,), Flow.PAUSE), SetFlow((1,), Flow.PARK)]
    wait(api, 3.0)
    assert api.upstream.cancels == [Cancel((1,), FinishReason.SLOW_CLIENT)]
    assert b'"slow_client"' in client.read() and b'"text":"x"' not in client.got
    client.leave()
    assert api.metrics.stream_actions["drop"].value == 1 and api.wasted_tokens == 6
    assert api.lines[-1]["reason"] == "slow_client"


def test_an_effect_for_a_dead_engine_is_no_error(api: Api) -> None:
    """The supervisor reports the death."""
    api.upstream.is_gone = False
    client = opened(api, n_tokens=2)
    api.upstream.is_gone = True
    for _ in range(4):
        api.upstream.speak("x")
    client.read()
    assert api.metrics.stream_actions["resume"].value == 1


def test_each_tick_asks_transports_for_unsent_bytes(api: Api) -> None:
    """They count like waiting bytes."""
    client = opened(api, n_tokens=3)
    client.unsent_bytes = 100_000
    wait(api, TICK_S)
    assert api.upstream.pushed[-1] == SetFlow((1,), Flow.PAUSE)


def test_a_silent_reader_gets_a_comment(api: Api) -> None:
    """It gets one only if nothing else was written, and another one after the same time."""
    client = opened(api, reads=True)
    wait(api, 14.0)
    api.upstream.speak("x")
    before = client.got
    wait(api, 14.0)
    assert client.got == before
    wait(api, 2.0)
    assert client.got == before + b":\n\n"
    wait(api, 15.5)
    assert client.got == before + b":\n\n:\n\n"


def test_a_reader_that_takes_nothing_is_cut_off(api: Api) -> None:
    """It is cut off after the end of the response too."""
    client = opened(api, n_tokens=2)
    api.upstream.finish()
    wait(api, 21.0)
    assert client.is_cut_off and api.metrics.stream_actions["disconnect"].value == 1
    client.leave()
    api.assert_quiet()


def test_a_slow_reader_of_several_is_dismissed_alone(api: Api) -> None:
    """The others go on. It gets the reason as its last event."""
    fast = opened(api, KEPT, reads=True)
    slow = joined(api, fast)
    for _ in range(6):
        api.upstream.speak("x")
    wait(api, 6.0)
    assert api.upstream.pushed[1:] == []
    assert b'"slow_client"' in slow.read() and slow.read() == b""
    assert not fast.answer.stream.has_reader(99) and fast.answer.stream.state is State.OPEN
    api.upstream.speak("y")
    assert b'"text":"y"' in fast.got and b'"text":"y"' not in slow.got
    assert api.metrics.stream_actions["reattach"].value == 1


def test_a_stream_without_readers_ends_after_its_grace_time(api: Api) -> None:
    """Its record is kept when it is evicted."""
    client = opened(api, DETACHED, reads=True, n_tokens=2)
    client.leave()
    assert client.answer.stream.state is State.DETACHED and api.metrics.stream_actions["detach"].value == 1
    assert api.dispatcher.registry.n_open == 1
    wait(api, 11.0)
    assert api.upstream.cancels == [Cancel((1,), FinishReason.GRACE_EXPIRED)]
    assert api.dispatcher.registry.n_open == 0 and api.lines[-1]["event"] == "finished"
    wait(api, 31.0)
    assert list(api.dispatcher.registry) == []


@pytest.fixture
def ticked(monkeypatch: pytest.MonkeyPatch) -> list[Response]:
    """The responses that the registry looks at when time passes."""
    found: list[Response] = []
    tick = Response.tick

    def noting_tick(response: Response) -> None:
        found.append(response)
        tick(response)

    monkeypatch.setattr(Response, "tick", noting_tick)
    return found


def test_kept_responses_are_evicted_first_when_memory_is_short(ticked: list[Response]) -> None:
    """The oldest one goes first. All go before any response that a client reads."""
    api = Api(streams=StreamsConfig(max_stream_bytes=8000))
    kept = []
    for _ in range(2):
        kept.append(opened(api, KEPT, reads=True, n_tokens=10))
        api.upstream.finish()
        kept[-1].leave()
    budget, reading = api.dispatcher.registry.budget, opened(api, KEPT, reads=True)
    before = budget.n_bytes
    assert before > 3000
    while len(list(api.dispatcher.registry)) == 3:
        api.upstream.speak("x")
    assert kept[0].answer.stream.cursor_after(0) is Missed.GONE
    assert list(api.dispatcher.registry) == [kept[1].answer, reading.answer]
    assert isinstance(reading.answer.stream.cursor_after(0), Cursor), "what is read is kept whole"
    assert 6000 - 200 < budget.n_bytes + before // 2 and budget.pressure is Pressure.NONE
    ticked.clear()
    wait(api, 31.0)
    assert kept[1].answer in ticked and kept[0].answer not in ticked


def test_the_number_of_kept_responses_is_bounded(ticked: list[Response]) -> None:
    """Their size does not matter. Undelivered tokens are counted, and the record is left."""
    api = Api(streams=StreamsConfig(kept_streams=2))
    kept = [opened(api, DETACHED) for _ in range(4)]
    for client, rid in zip(kept, range(1, 5), strict=True):
        client.leave()
        api.upstream.speak("x", rid)
        api.upstream.finish(rid)
        wait(api, TICK_S)
    assert list(api.dispatcher.registry) == [kept[2].answer, kept[3].answer]
    assert api.wasted_tokens == 2
    record = api.dispatcher.registry.find(kept[0].answer.spec.stream_id, "")
    assert isinstance(record, StreamRecord) and (record.state, record.reason) == ("closed", "stop")
    assert (record.generated_tokens, record.wasted_tokens) == (1, 1)
    ticked.clear()
    wait(api, 31.0)
    assert {*ticked} == {kept[2].answer, kept[3].answer}


def test_a_drain_does_not_wait_for_detached_streams(api: Api) -> None:
    """Streams without readers end immediately; the others may finish."""
    client, other = opened(api, DETACHED, reads=True), opened(api, DETACHED, reads=True)
    client.leave()
    told: list[str] = []
    api.dispatcher.registry.empty.wait(lambda: told.append("empty"))
    api.dispatcher.drain()
    assert [cancel.rids for cancel in api.upstream.cancels] == [(1,)]
    api.upstream.finish()
    assert other.got.endswith(b"data: [DONE]\n\n") and told == []
    other.leave()
    assert told == ["empty"]


def test_ticks_are_needed_only_while_there_is_a_response(api: Api) -> None:
    """An idle process is not woken."""
    told: list[str] = []
    api.dispatcher.registry.timed.wait(lambda: told.append("first"))
    assert told == []
    client = opened(api)
    api.dispatcher.registry.timed.wait(lambda: told.append("second"))
    assert told == ["first", "second"]
    client.leave()
    api.dispatcher.registry.tick()
    api.dispatcher.registry.timed.wait(lambda: told.append("third"))
    assert told == ["first", "second"]


@pytest.mark.parametrize("is_whole", [True, False], ids=["gathered", "ended"])
def test_a_large_answer_is_freed_in_portions(api: Api, is_whole: bool) -> None:
    """It leaves the budget immediately. Ticks free its memory."""
    client = Client(api)
    order = spec_of(parse_completion(completion(max_tokens=10_000)), stream_id=next(_ids))
    client.answer, client.reader_id = api.dispatcher.open(order, client)
    api.upstream.accept()
    api.upstream.speak("x" * (FREED_BYTES + 5 * PIECE_BYTES))
    if not is_whole:
        api.upstream.finish()
    budget, told = api.dispatcher.registry.budget, list[str]()
    client.leave()
    assert budget.n_bytes == 0 and budget.has_memory_to_free
    api.dispatcher.registry.timed.wait(lambda: told.append("first"))
    wait(api, TICK_S)
    assert told == ["first"] and budget.has_memory_to_free
    wait(api, TICK_S)
    api.dispatcher.registry.timed.wait(lambda: told.append("second"))
    assert told == ["first"] and not budget.has_memory_to_free


def test_ticks_are_needed_after_the_eviction_of_a_large_answer() -> None:
    """Its memory is freed later."""
    api = Api(streams=StreamsConfig(kept_streams=1, replay_bytes=1 << 30))
    told = list[str]()
    for _ in range(2):
        client = Client(api)
        order = spec_of(parse_completion(completion(max_tokens=10_000)), terms=LONG_KEPT, stream_id=next(_ids))
        client.answer, client.reader_id = api.dispatcher.open(order, client)
        api.upstream.accept()
        api.upstream.speak("x" * (20 * PIECE_BYTES))
        api.upstream.finish()
        client.leave()
    assert api.dispatcher.registry.budget.has_memory_to_free
    api.dispatcher.registry.timed.wait(lambda: told.append("freed"))
    assert told == ["freed"]


def test_a_wake_within_a_wake_does_not_nest(api: Api) -> None:
    """A reader that is woken may cause the wake of another one."""
    clients = [opened(api, reads=True) for _ in range(50)]
    for client in clients:
        client.reads = False
    for rid in range(1, 51):
        for _ in range(6):
            api.upstream.speak("x", rid)
    for client in clients:
        client.reads = True
    for client in clients:
        api.dispatcher.registry.touched.add(client.answer)
    api.dispatcher.registry.wake()
    runs = [message for message in api.upstream.pushed if isinstance(message, SetFlow) and message.flow is Flow.RUN]
    assert len(runs) == 50
    assert api.delivered_tokens == 300
