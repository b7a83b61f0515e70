"""A client that has left costs nothing. Clients leave over real sockets; the engine's statistics show the effect."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.raw_http import RawConnection
from support.requests import (
    COMPLETIONS,
    ENDLESS,
    chunks_of,
    completion,
    is_quiet,
    open_stream,
    served_name,
    take,
    wait_left,
    wait_quiet,
)
from support.server import Server, wait_until

Leave = Callable[[RawConnection], None]
leaves = pytest.mark.parametrize("leave", [RawConnection.finish, RawConnection.reset], ids=["fin", "rst"])


streamed_or_plain = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])
LONG = "word " * 1500
"""Long enough to be encoded outside the loop; the fake model has a token for each letter."""
SMALL = 4096
"""The receive buffer of a client whose silence the server should notice soon."""


@pytest.fixture(scope="module")
def small_steps() -> Iterator[Server]:
    """A server that computes a long prompt in many steps."""
    with Server("fake", "--max-running", "16", "--max-step-tokens", "16") as server:
        yield server


@pytest.fixture(scope="module")
def one_slot() -> Iterator[Server]:
    with Server("fake", "--max-running", "1") as server:
        yield server


@pytest.fixture(scope="module")
def two_slots() -> Iterator[Server]:
    with Server("fake", "--max-running", "2") as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that allows any backlog, but disconnects a client that reads nothing for half a second."""
    with Server("fake", "--slow-client", "unbounded; stall_timeout_s=0.5") as server:
        yield server


def ends(server: Server) -> dict[str, int]:
    """How many sequences have finished since the start, by reason."""
    counts: dict[str, int] = server.stats()["finished"]
    return counts


@leaves
@pytest.mark.parametrize("n_events", [1, 5], ids=["first token", "middle"])
def test_a_stream_is_released_when_its_client_leaves_after_some_events(
    fake: Server, leave: Leave, n_events: int
) -> None:
    before = fake.finished("disconnected")
    connection, events = open_stream(fake, completion(fake, n_tokens=ENDLESS))
    take(events, n_events)
    leave(connection)
    wait_left(fake, before)


@leaves
def test_a_stream_is_released_when_its_client_never_read(fake: Server, leave: Leave) -> None:
    """The client reads nothing, not even the headers."""
    before = fake.finished("disconnected")
    connection = fake.connect()
    connection.request("POST", COMPLETIONS, completion(fake, n_tokens=ENDLESS, stream=True))
    wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
    leave(connection)
    wait_left(fake, before)


@leaves
def test_a_plain_request_is_released_when_its_client_leaves(fake: Server, leave: Leave) -> None:
    """The server writes nothing before the end, so only the closed socket shows it."""
    before = fake.finished("disconnected")
    connection = fake.connect()
    connection.request("POST", COMPLETIONS, completion(fake, n_tokens=ENDLESS))
    wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
    leave(connection)
    wait_left(fake, before)


@leaves
@streamed_or_plain
def test_nothing_is_held_when_the_client_leaves_before_the_headers(fake: Server, leave: Leave, stream: bool) -> None:
    """It leaves while its prompt is encoded, when the server has not written anything to it."""
    before = fake.stats()["engine"]
    for _ in range(8):
        connection = fake.connect()
        connection.request("POST", COMPLETIONS, completion(fake, LONG, ENDLESS, stream=stream))
        leave(connection)
    wait_quiet(fake)
    after = fake.stats()["engine"]
    n_accepted = after["accepted_total"] - before["accepted_total"]
    assert after["released_total"] - before["released_total"] == n_accepted <= 8
    assert after["generated_tokens_total"] == before["generated_tokens_total"]


@leaves
@pytest.mark.parametrize("n_unread", [0, 1, 2])
def test_a_stream_ends_once_when_its_client_leaves_at_its_last_tokens(
    fake: Server, leave: Leave, n_unread: int
) -> None:
    """The finish and the disconnect happen at the same time. Only the first of them to reach the engine counts."""
    before, released = ends(fake), fake.stats()["engine"]["released_total"]
    for _ in range(8):
        connection, events = open_stream(fake, completion(fake, n_tokens=12))
        take(events, 12 - n_unread)
        leave(connection)
    wait_quiet(fake)
    after = ends(fake)
    assert sum(after.values()) == sum(before.values()) + 8, after
    assert fake.stats()["engine"]["released_total"] == released + 8


@leaves
@streamed_or_plain
def test_a_prompt_is_dropped_when_its_client_leaves_in_prefill(small_steps: Server, leave: Leave, stream: bool) -> None:
    """The prompt takes many steps. The client leaves during one of the first, and no token is generated."""
    before, generated = small_steps.finished("disconnected"), small_steps.stats()["engine"]["generated_tokens_total"]
    connection = small_steps.connect()
    connection.request("POST", COMPLETIONS, completion(small_steps, LONG, n_tokens=8, stream=stream))
    wait_until(lambda: small_steps.stats()["engine"]["running"] == 1, "its prefill runs")
    leave(connection)
    wait_left(small_steps, before)
    assert small_steps.stats()["engine"]["generated_tokens_total"] == generated


@leaves
@streamed_or_plain
def test_every_choice_is_released_when_the_client_of_all_leaves(fake: Server, leave: Leave, stream: bool) -> None:
    """One request with four sequences: each is ended and released once."""
    before, released = fake.finished("disconnected"), fake.stats()["engine"]["released_total"]
    connection = fake.connect()
    connection.request("POST", COMPLETIONS, completion(fake, n_tokens=ENDLESS, n=4, stream=stream))
    wait_until(lambda: fake.stats()["engine"]["running"] == 4, "all of them run")
    leave(connection)
    wait_left(fake, before, n=4)
    assert fake.stats()["engine"]["released_total"] == released + 4


@leaves
def test_every_choice_is_released_when_only_some_of_them_run(two_slots: Server, leave: Leave) -> None:
    """Three choices for two slots: one waits, and is cancelled with the others."""
    before = two_slots.finished("disconnected")
    connection = two_slots.connect()
    connection.request("POST", COMPLETIONS, completion(two_slots, n_tokens=ENDLESS, n=3, stream=True))
    wait_until(lambda: two_slots.stats()["engine"]["running"] == 2, "two run")
    assert two_slots.stats()["engine"]["waiting"] == 1
    leave(connection)
    wait_left(two_slots, before, n=3)


def test_a_stream_is_released_when_its_client_falls_silent(impatient: Server) -> None:
    """It neither reads nor leaves, and its policy allows any backlog. The stall timeout ends its streams."""
    body = completion(impatient, n_tokens=ENDLESS, n=2)
    connection, events = open_stream(impatient, body, receive_buffer_bytes=SMALL)
    take(events, 1)
    wait_until(lambda: impatient.finished("slow_client") == 2, "both were ended")
    wait_quiet(impatient)
    connection.finish()


def test_a_whole_response_is_closed_when_its_client_falls_silent(impatient: Server) -> None:
    """The answer is complete, and its client takes nothing of it. The stall timeout closes the response."""
    connection = impatient.connect(receive_buffer_bytes=SMALL)
    body = completion(impatient, n_tokens=1000, n=16, return_token_ids=True)
    connection.request("POST", COMPLETIONS, body)
    wait_until(lambda: impatient.finished("length") == 16, "it is computed", 60)
    wait_until(lambda: impatient.stats()["api"]["sessions"] == 0, "the response closes")
    wait_quiet(impatient)
    connection.finish()


@leaves
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/stream", "/v1/generate"])
def test_every_endpoint_releases_when_its_client_leaves(fake: Server, leave: Leave, path: str) -> None:
    before = fake.finished("disconnected")
    words = (
        {"messages": [{"role": "user", "content": "once"}], "stream": True} if "chat" in path else {"prompt": "once"}
    )
    shared = {"model": served_name(fake), "max_tokens": ENDLESS, "ignore_eos": True}
    connection = fake.connect()
    connection.request("POST", path, shared | words)
    wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
    leave(connection)
    wait_left(fake, before)


@leaves
def test_a_waiting_request_never_runs_when_its_client_has_left(one_slot: Server, leave: Leave) -> None:
    """The only slot is taken. Requests that leave the queue never run. The last request stays and is served next."""
    before = one_slot.finished("disconnected")
    connection, events = open_stream(one_slot, completion(one_slot, n_tokens=ENDLESS))
    take(events, 1)
    waiting = [one_slot.connect() for _ in range(3)]
    for i, one in enumerate(waiting):
        one.request("POST", COMPLETIONS, completion(one_slot, n_tokens=ENDLESS, stream=i % 2 == 0))
    wait_until(lambda: one_slot.stats()["engine"]["waiting"] == 3, "three wait")
    last = one_slot.connect()
    last.request("POST", COMPLETIONS, completion(one_slot, "stays", n_tokens=4))
    wait_until(lambda: one_slot.stats()["engine"]["waiting"] == 4, "four wait")
    for one in waiting:
        leave(one)
    wait_until(lambda: one_slot.stats()["engine"]["waiting"] == 1, "three left the queue")
    assert one_slot.stats()["engine"]["running"] == 1
    leave(connection)
    assert last.read_answer().status == 200
    last.finish()
    wait_left(one_slot, before, n=4)


@pytest.mark.slow
@leaves
def test_a_long_prompt_is_dropped_when_its_client_leaves_in_prefill(model: Server, leave: Leave) -> None:
    """The prompt takes many steps. The client leaves after the first of them."""
    before, generated = model.finished("disconnected"), model.stats()["engine"]["generated_tokens_total"]
    connection = model.connect()
    body = completion(model, [100 + i % 900 for i in range(6000)], n_tokens=8, stream=True)
    connection.request("POST", COMPLETIONS, body)
    wait_until(lambda: model.stats()["engine"]["running"] == 1, "its prefill runs")
    leave(connection)
    wait_left(model, before)
    assert model.stats()["engine"]["generated_tokens_total"] == generated


@leaves
def test_nothing_is_held_when_the_client_leaves_before_its_body_is_whole(fake: Server, leave: Leave) -> None:
    accepted = fake.stats()["engine"]["accepted_total"]
    connection = fake.connect()
    connection.send(RawConnection.head("POST", COMPLETIONS, {"Content-Length": "1000"}) + b'{"model": ')
    leave(connection)
    wait_quiet(fake)
    assert fake.stats()["engine"]["accepted_total"] == accepted


def test_other_streams_are_not_disturbed_when_a_client_leaves(fake: Server) -> None:
    """One of eight greedy streams is reset in the middle. The other seven have the same text as alone."""
    bodies = [completion(fake, f"stream {i}", n_tokens=200) for i in range(8)]

    def read(i: int, leaves_early: bool) -> list[object]:
        connection, events = open_stream(fake, bodies[i])
        if leaves_early:
            take(events, 20)
            connection.reset()
            return []
        with connection:
            return [choice["text"] for chunk in chunks_of(events) for choice in chunk["choices"]]

    alone = ["".join(map(str, read(i, False))) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(read, range(8), [i == 3 for i in range(8)]))
    for i in {*range(8)} - {3}:
        assert "".join(map(str, together[i])) == alone[i]


def test_the_counters_agree_when_165_of_300_clients_leave_early(fake: Server) -> None:
    """48 clients open 300 streams. Some leave early, at any moment, with FIN or RST."""
    choose = random.Random(20)
    early = set(choose.sample(range(300), 165))
    moments = [choose.randrange(0, 30) for _ in range(300)]
    before, engine = fake.finished("disconnected"), fake.stats()["engine"]

    def run(i: int) -> bool:
        connection, events = open_stream(fake, completion(fake, f"client {i}", n_tokens=ENDLESS if i in early else 30))
        if i in early:
            take(events, moments[i])
            (connection.reset if i % 2 else connection.finish)()
            return True
        with connection:
            return sum(len(chunk["choices"]) for chunk in chunks_of(events)) > 0

    with ThreadPoolExecutor(48) as pool:
        assert all(pool.map(run, range(300)))
    wait_until(lambda: is_quiet(fake), "everything is released")
    after = fake.stats()["engine"]
    assert fake.finished("disconnected") == before + 165
    assert after["accepted_total"] == engine["accepted_total"] + 300
    assert after["released_total"] == engine["released_total"] + 300
