"""A client that has gone costs nothing: judged by the engine's accounts alone, over real sockets."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.raw_http import RawConnection
from support.requests import COMPLETIONS, ENDLESS, chunks_of, completion, is_quiet, open_stream, take, wait_quiet
from support.server import Server, wait_until

Leave = Callable[[RawConnection], None]
leaves = pytest.mark.parametrize("leave", [RawConnection.finish, RawConnection.reset], ids=["fin", "rst"])


def wait_cancelled(server: Server, before: float, n: int = 1) -> None:
    """Until everything is given back; then exactly `n` more requests were cancelled."""
    wait_until(lambda: server.finished("cancelled") >= before + n, f"{n} more cancelled")
    wait_quiet(server)
    assert server.finished("cancelled") == before + n
    engine = server.stats()["engine"]
    assert engine["finished_total"] == engine["accepted_total"] == engine["released_total"]


@leaves
def test_a_stream_is_released_when_its_client_leaves_in_the_middle(fake: Server, leave: Leave) -> None:
    """Some events were read, then the socket is closed."""
    before = fake.finished("cancelled")
    connection, events = open_stream(fake, completion(fake, n_tokens=ENDLESS))
    take(events, 5)
    leave(connection)
    wait_cancelled(fake, before)


@leaves
def test_a_stream_is_released_when_its_client_never_read(fake: Server, leave: Leave) -> None:
    """The client leaves without having read even the headers."""
    before = fake.finished("cancelled")
    connection = fake.connect()
    connection.request("POST", COMPLETIONS, completion(fake, n_tokens=ENDLESS, stream=True))
    wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
    leave(connection)
    wait_cancelled(fake, before)


@leaves
def test_a_plain_request_is_released_when_its_client_leaves(fake: Server, leave: Leave) -> None:
    """No byte is written before the end, so nothing but the closed socket tells."""
    before = fake.finished("cancelled")
    connection = fake.connect()
    connection.request("POST", COMPLETIONS, completion(fake, n_tokens=ENDLESS))
    wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
    leave(connection)
    wait_cancelled(fake, before)


@leaves
def test_every_choice_is_released_when_the_client_of_all_leaves(fake: Server, leave: Leave) -> None:
    """One request with four sequences: each is ended and given back, once."""
    before, released = fake.finished("cancelled"), fake.stats()["engine"]["released_total"]
    connection, events = open_stream(fake, completion(fake, n_tokens=ENDLESS, n=4))
    take(events, 8)
    leave(connection)
    wait_cancelled(fake, before, n=4)
    assert fake.stats()["engine"]["released_total"] == released + 4


@leaves
def test_a_waiting_request_never_runs_when_its_client_has_left(leave: Leave) -> None:
    """With one slot taken, those who leave the queue are not computed; who stays is served next."""
    with Server("fake", "--max-running", "1") as server:
        connection, events = open_stream(server, completion(server, n_tokens=ENDLESS))
        take(events, 1)
        waiting = [server.connect() for _ in range(3)]
        for i, one in enumerate(waiting):
            one.request("POST", COMPLETIONS, completion(server, n_tokens=ENDLESS, stream=i % 2 == 0))
        wait_until(lambda: server.stats()["engine"]["waiting"] == 3, "three wait")
        last = server.connect()
        last.request("POST", COMPLETIONS, completion(server, "stays", n_tokens=4))
        wait_until(lambda: server.stats()["engine"]["waiting"] == 4, "four wait")
        for one in waiting:
            leave(one)
        wait_until(lambda: server.stats()["engine"]["waiting"] == 1, "three left the queue")
        assert server.stats()["engine"]["running"] == 1
        leave(connection)
        assert last.read_answer().status == 200
        last.finish()
        wait_cancelled(server, 0, n=4)


@pytest.mark.slow
@leaves
def test_a_long_prompt_is_dropped_when_its_client_leaves_in_prefill(model: Server, leave: Leave) -> None:
    """The prompt takes many steps of the budget; the client goes after the first of them."""
    before, generated = model.finished("cancelled"), model.stats()["engine"]["generated_tokens_total"]
    connection = model.connect()
    body = completion(model, [100 + i % 900 for i in range(6000)], n_tokens=8, stream=True)
    connection.request("POST", COMPLETIONS, body)
    wait_until(lambda: model.stats()["engine"]["running"] == 1, "its prefill runs")
    leave(connection)
    wait_cancelled(model, before)
    assert model.stats()["engine"]["generated_tokens_total"] == generated


@leaves
def test_nothing_is_held_when_the_client_leaves_before_its_body_is_whole(fake: Server, leave: Leave) -> None:
    """Half a request is no request."""
    accepted = fake.stats()["engine"]["accepted_total"]
    connection = fake.connect()
    connection.send(RawConnection.head("POST", COMPLETIONS, {"Content-Length": "1000"}) + b'{"model": ')
    leave(connection)
    wait_quiet(fake)
    assert fake.stats()["engine"]["accepted_total"] == accepted


def test_the_others_are_not_disturbed_when_one_leaves(fake: Server) -> None:
    """Eight greedy streams, one is reset midway: the other seven say what they say alone."""
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


def test_the_accounts_balance_when_165_of_300_clients_leave_early(fake: Server) -> None:
    """48 clients open 300 streams; those who go do so at any moment and in both ways."""
    choose = random.Random(20)
    early = set(choose.sample(range(300), 165))
    moments = [choose.randrange(0, 30) for _ in range(300)]
    before, engine = fake.finished("cancelled"), fake.stats()["engine"]

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
    wait_until(lambda: is_quiet(fake), "everything is given back")
    after = fake.stats()["engine"]
    assert fake.finished("cancelled") == before + 165
    assert after["accepted_total"] == engine["accepted_total"] + 300
    assert after["released_total"] == engine["released_total"] + 300
