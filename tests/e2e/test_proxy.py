"""Behind a real nginx: the server notices clients that leave, and events and comments reach clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from sluiceway_lab.experiments.cut_streams import Client, CutPlan, browser_client, library_client, own_client, resumed
from sluiceway_lab.load.client import Target, parse_reply, record
from sluiceway_lab.load.proxies import Cut, ProxyRules, own_nginx, own_proxy, relay
from sluiceway_lab.load.target_server import TargetServer, meet
from support.mirror import ROOT
from support.raw_http import RawConnection
from support.requests import COMPLETIONS, ENDLESS, completion, wait_left
from support.server import Server, wait_until
from support.system import needs_browser, needs_nginx

pytestmark = needs_nginx

Leave = Callable[[RawConnection], None]
leaves = pytest.mark.parametrize("leave", [RawConnection.finish, RawConnection.reset], ids=["fin", "rst"])
streamed_or_plain = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "plain"])

UNBUFFERED = ProxyRules(http_version="1.1", buffers=False)
IGNORANT = ProxyRules(heeds_header=False)
ALL = {"as it comes": ProxyRules(), "buffering off": UNBUFFERED, "header ignored": IGNORANT}
each_proxy = pytest.mark.parametrize("rules", ALL.values(), ids=ALL.keys())

PATIENCE_S = 2.5
"""How long nginx waits in tests of its timeout."""
COMMENTS_S = 0.25
N_COMMENTS = 12
"""Answers of this many tokens take longer than nginx waits."""


@contextmanager
def behind(server: Server, rules: ProxyRules) -> Iterator[int]:
    """The port of a proxy in front of this server."""
    with own_proxy(Target("127.0.0.1", server.port), rules) as target:
        yield target.port


def asked(port: int, body: object) -> RawConnection:
    connection = RawConnection(port)
    connection.request("POST", COMPLETIONS, body)
    return connection


@each_proxy
@leaves
@streamed_or_plain
def test_a_request_is_released_once_when_its_client_leaves_the_proxy(
    fake: Server, rules: ProxyRules, leave: Leave, stream: bool
) -> None:
    """Only the connection that nginx closes shows it."""
    before = fake.finished("disconnected")
    with behind(fake, rules) as port:
        connection = asked(port, completion(fake, n_tokens=ENDLESS, stream=stream))
        wait_until(lambda: fake.stats()["engine"]["running"] == 1, "it runs")
        leave(connection)
        wait_left(fake, before)


@each_proxy
@streamed_or_plain
def test_every_choice_is_released_when_the_client_of_all_leaves_the_proxy(
    fake: Server, rules: ProxyRules, stream: bool
) -> None:
    """One request with four sequences."""
    before, released = fake.finished("disconnected"), fake.stats()["engine"]["released_total"]
    with behind(fake, rules) as port:
        connection = asked(port, completion(fake, n_tokens=ENDLESS, n=4, stream=stream))
        wait_until(lambda: fake.stats()["engine"]["running"] == 4, "all run")
        connection.finish()
        wait_left(fake, before, n=4)
    assert fake.stats()["engine"]["released_total"] == released + 4


def test_events_come_one_by_one_unless_the_proxy_ignores_the_header() -> None:
    """The first event arrives before the others are generated. Through a proxy that buffers, all arrive at the end."""
    with Server("fake", "--fake-step", "0.2") as server:
        for rules in ALL.values():
            with behind(server, rules) as port, asked(port, completion(server, n_tokens=8, stream=True)) as connection:
                connection.read_head()
                events = connection.read_events()
                next(events)
                assert server.stats()["engine"]["running"] == (0 if rules is IGNORANT else 1)
                assert list(events)[-1] == "[DONE]"


def test_comments_keep_a_stream_that_waits_longer_than_the_proxy() -> None:
    """The only slot is taken, so the stream waits. Comments keep it even if nginx does not pass them on."""
    with ExitStack() as stack:
        server = stack.enter_context(Server("fake", "--max-running", "1"))
        hurried = [replace(rules, read_timeout_s=PATIENCE_S) for rules in ALL.values()]
        ports = [stack.enter_context(behind(server, rules)) for rules in hurried]
        first = asked(server.port, completion(server, n_tokens=ENDLESS, stream=True))
        wait_until(lambda: server.stats()["engine"]["running"] == 1, "the slot is taken")
        body = completion(server, n_tokens=4, stream=True, sluiceway={"keep_alive_s": COMMENTS_S})
        *held, direct = [stack.enter_context(asked(port, body)) for port in [*ports, server.port]]
        direct.read_head()
        raw, chunks = b"", direct.read_chunks()
        while raw.count(b":") < N_COMMENTS:
            raw += next(chunks)
        first.finish()
        for connection in held:
            assert connection.read_head()[0] == 200
            assert list(connection.read_events())[-1] == "[DONE]"


@streamed_or_plain
def test_a_silent_answer_is_cut_by_the_proxy_and_released(stream: bool) -> None:
    """A stream without comments breaks off, and a whole answer is a 504: the proxy must wait longer than an answer."""
    rules = ProxyRules(http_version="1.1", buffers=False, read_timeout_s=0.5)
    with Server("fake", "--max-running", "1") as server, behind(server, rules) as port:
        first = asked(server.port, completion(server, n_tokens=ENDLESS, stream=True))
        wait_until(lambda: server.stats()["engine"]["running"] == 1, "the slot is taken")
        more = {"sluiceway": {"keep_alive_s": 0}} if stream else {}
        with asked(port, completion(server, n_tokens=4, stream=stream, **more)) as silent:
            assert silent.read_head()[0] == (200 if stream else 504)
            if stream:
                with pytest.raises(ConnectionError):
                    list(silent.read_chunks())
        wait_until(lambda: server.finished("disconnected") == 1, "the waiting request is cancelled")
        assert server.stats()["engine"]["running"] == 1
        first.finish()
        wait_left(server, 1)


@pytest.mark.parametrize(("rules", "is_whole"), [(ProxyRules(), True), (UNBUFFERED, False)], ids=["1.0", "1.1"])
async def test_a_broken_stream_differs_from_a_complete_one_only_over_http_1_1(
    fake: Server, rules: ProxyRules, is_whole: bool
) -> None:
    """Over 1.0 the end of the connection is the end of the answer. Only the missing `[DONE]` shows the break."""
    server = await target_server_of(fake)
    async with relay(server.target, lambda line: Cut(300, resets=False)) as between:
        with own_proxy(between, rules) as target:
            request = target.request("POST", COMPLETIONS, server.body("once", 64))
            reply = parse_reply((await record(target, request, 30.0)).reads)
    assert reply.is_whole is is_whole
    assert b"data: " in reply.body and b"[DONE]" not in reply.body


def test_the_configuration_of_the_docs_serves_streams_and_long_prompts(fake: Server) -> None:
    """Only the port is changed. A prompt above nginx's default limit reaches the server, and the server refuses it."""
    (block,) = re.findall(r"^```nginx\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE | re.DOTALL)
    before = fake.finished("disconnected")
    with own_nginx(block.replace("127.0.0.1:8000", f"127.0.0.1:{fake.port}")) as port:
        with asked(port, completion(fake, "long " * 400_000)) as connection:
            assert connection.read_answer().json()["error"]["code"] == "context_length_exceeded"
        stream = asked(port, completion(fake, n_tokens=ENDLESS, stream=True))
        assert stream.read_head()[1]["transfer-encoding"] == "chunked"
        next(stream.read_events())
        stream.finish()
        wait_left(fake, before)


async def target_server_of(server: Server) -> TargetServer:
    return await meet(Target("127.0.0.1", server.port))


@pytest.mark.parametrize(("name", "client"), [("own", own_client), ("library", library_client)])
async def test_a_stream_that_was_cut_before_the_proxy_is_resumed(fake: Server, name: str, client: Client) -> None:
    """The lab's client and a library resume it after ten cuts, without a missing or repeated byte."""
    server = await target_server_of(fake)
    with own_proxy(server.target) as target:
        plan = CutPlan.drawn(f"proxy-{name}", "once", 100, 10)
        one = await resumed(replace(server, target=target), plan, client)
    assert one.has_same_bytes and one.is_in_order and one.has_same_text
    assert one.received.n_cuts == 10 and one.received.events.endswith(b"data: [DONE]\n\n")


@needs_browser
async def test_a_browser_resumes_by_itself_and_stops_at_the_end(fake: Server) -> None:
    """Its EventSource is cut twice behind the proxy. After the end it connects once more and gets a 204."""
    server = await target_server_of(fake)
    async with browser_client(server) as (found, client):
        one = await resumed(found, CutPlan.drawn("proxy-browser", "once", 100, 2), client)
    assert one.has_same_bytes and one.is_in_order and one.has_same_text
    assert (one.received.n_cuts, one.received.n_after_end) == (2, 1)
