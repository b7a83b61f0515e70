"""The HTTP connection: limits of heads, clients that leave, and the order of answers."""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import sys
import termios
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from starlette.types import Receive, Scope, Send

from sluiceway.api.http import protocol as http_protocol
from sluiceway.api.http.chunks import chunks_of
from sluiceway.api.http.protocol import Buffers
from sluiceway.ipc.messages.to_tokenizer import Cancel
from sluiceway.types import FinishReason
from support.asgi_driver import Api, chat, completion
from support.live_http import TIMEOUT_S, LiveClient, head, live_http

PATH = "/v1/completions"
Leave = Callable[[LiveClient], None]

leaves = pytest.mark.parametrize("leave", [LiveClient.finish, LiveClient.reset], ids=["fin", "rst"])
loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
protocols = pytest.mark.parametrize("http", [None, "h11"], ids=["ours", "h11"])


@asynccontextmanager
async def connected(api: Api, http: str | None = None, **options: Any) -> AsyncIterator[LiveClient]:
    async with live_http(api.app, http=http, **options) as port:
        client = await LiveClient.connect(port)
        try:
            yield client
        finally:
            client.finish()


def run(loop: Callable[[], asyncio.AbstractEventLoop], scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(scenario)


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


# Clients that leave.


@leaves
@loops
@protocols
@pytest.mark.parametrize("moment", ["queued", "prefill", "decoding"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_noticed(
    leave: Leave, loop: Callable[[], asyncio.AbstractEventLoop], http: str | None, moment: str, stream: bool
) -> None:
    """Every loop notices it, for streams and whole answers, before the head and after it. Nothing is left."""

    async def scenario() -> None:
        api = Api()
        async with connected(api, http) as client:
            await client.request("POST", PATH, completion(stream=stream))
            await api.upstream.until(lambda: api.upstream.requests)
            if moment != "queued":
                api.upstream.accept()
            if moment == "decoding":
                api.upstream.speak("x")
            if moment != "queued" and stream:
                await client.read_head()
            leave(client)
            await api.upstream.until(lambda: api.upstream.cancels)
            assert api.upstream.cancels == [Cancel((1,), FinishReason.DISCONNECTED)]
            api.upstream.end_cancelled(api.upstream.cancels[0])
            api.assert_quiet()

    run(loop, scenario())


@leaves
@loops
def test_a_client_that_does_not_read_and_leaves_is_noticed(
    leave: Leave, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Bytes that wait for it do not hide that."""

    async def scenario() -> None:
        api = Api()
        async with live_http(api.app) as port:
            client = await LiveClient.connect(port, receive_buffer_bytes=4096)
            await client.request("POST", PATH, completion(stream=True))
            await api.upstream.until(lambda: api.upstream.requests)
            api.upstream.accept()
            for _ in range(100):
                api.upstream.speak("x" * 100_000)
            await client.read_head()
            leave(client)
            await api.upstream.until(lambda: api.upstream.cancels)

    run(loop, scenario())


@leaves
@loops
@pytest.mark.parametrize("n_ahead", [1, 3])
def test_a_client_that_asked_ahead_and_leaves_is_noticed(
    leave: Leave, loop: Callable[[], asyncio.AbstractEventLoop], n_ahead: int
) -> None:
    """Waiting requests do not hide that, and are not begun."""

    async def scenario() -> None:
        api = Api()
        async with connected(api) as client:
            body = completion()
            request = head("POST", PATH, f"Content-Length: {len(body)}") + body
            await client.send(request * (1 + n_ahead))
            await api.upstream.until(lambda: api.upstream.requests)
            leave(client)
            await api.upstream.until(lambda: api.upstream.cancels)
            assert len(api.upstream.requests) == 1

    run(loop, scenario())


# Clients that stay and do not read.


@loops
def test_a_client_that_takes_nothing_of_an_answer_is_cut_off(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """A client that reads slowly gets the whole answer."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"20000000")]})
        await send({"type": "http.response.body", "body": b"x" * 20_000_000})

    async def scenario() -> None:
        async with live_http(app, buffers=Buffers(send_timeout_s=1.0)) as port:
            silent, slow = [await LiveClient.connect(port, receive_buffer_bytes=4096) for _ in range(2)]
            for client in (silent, slow):
                await client.request("GET", "/")
            answer = await slow.read_answer()
            assert len(answer.body) == 20_000_000
            await silent.cut_off()
            assert len(await silent.read_to_the_end()) < 20_000_000
            silent.finish()
            slow.finish()

    run(loop, scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels cannot be asked what they have not sent")
@loops
def test_a_stopped_reader_is_noticed_after_tens_of_events(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """When its kernel is full, little more fits between it and the backlog."""
    full = asyncio.Event()
    event, limit_bytes = b"x" * 200, 1 << 20
    written: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        chunks = chunks_of(scope)
        assert chunks is not None
        while chunks.is_writable and sum(written) < limit_bytes:
            chunks.write(event)
            written.append(len(event))
            await asyncio.sleep(0)
        full.set()
        await send({"type": "http.response.body", "body": b""})

    async def scenario() -> None:
        async with live_http(app) as port:
            with await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port)) as raw:
                raw.sendall(head("GET", "/"))
                await asyncio.wait_for(full.wait(), 10.0)
                in_its_kernel = int.from_bytes(fcntl.ioctl(raw, termios.FIONREAD, bytes(4)), sys.byteorder)
                assert sum(written) - in_its_kernel < 100 * len(event)

    run(loop, scenario())
    assert sum(written) < limit_bytes


@loops
def test_a_kernel_without_the_bound_for_unsent_bytes_works(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some systems that call themselves Linux do not know the option."""
    monkeypatch.setattr(http_protocol, "_NOTSENT_LOWAT", 9999)
    faults: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        async with connected(Api()) as client:
            await client.request("GET", "/health/live")
            assert (await client.read_answer()).status == 200

    run(loop, scenario())
    assert faults == []


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name the times of their probes differently")
@loops
def test_the_kernel_probes_silent_connections(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It probes three times, after 30 s of silence."""
    options: list[int] = []
    transports: list[asyncio.Transport] = []
    made = http_protocol.WatchfulProtocol.connection_made

    def connection_made(protocol: http_protocol.WatchfulProtocol, transport: asyncio.Transport) -> None:
        transports.append(transport)
        made(protocol, transport)

    monkeypatch.setattr(http_protocol.WatchfulProtocol, "connection_made", connection_made)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = transports[0].get_extra_info("socket")
        options.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        options.extend(connection.getsockopt(socket.IPPROTO_TCP, name) for name in names)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def scenario() -> None:
        async with live_http(app) as port:
            client = await LiveClient.connect(port)
            await client.request("GET", "/")
            await client.read_answer()
            client.finish()

    run(loop, scenario())
    assert options == [1, 30, 10, 3]


async def test_an_idle_connection_with_an_untaken_answer_is_closed() -> None:
    """An ordinary close would wait for the client."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4000000")]})
        await send({"type": "http.response.body", "body": b"x" * 4_000_000})

    async with live_http(app, keep_alive_s=1.0, buffers=Buffers(write_bytes=1 << 30)) as port:
        client = await LiveClient.connect(port, receive_buffer_bytes=4096)
        await client.request("GET", "/")
        await client.cut_off()
        assert len(await client.read_to_the_end()) < 4_000_000
        client.finish()


# Connections that are used again.


@protocols
async def test_a_connection_is_used_again(http: str | None) -> None:
    """The answer before may be of any kind, or an error."""
    api = Api()
    api.upstream.script = ["Hello"]
    async with connected(api, http) as client:
        for method, path, body, status in (
            ("POST", PATH, completion(), 200),
            ("POST", PATH, b"{", 400),
            ("POST", PATH, completion(stream=True), 200),
            ("POST", "/v1/chat/completions", chat(model="x"), 404),
            ("GET", "/nothing", b"", 404),
            ("DELETE", PATH, b"", 405),
            ("GET", "/health", b"", 200),
            ("POST", "/v1/chat/completions", chat(), 200),
        ):
            await client.request(method, path, body, "X-Request-Id: mine")
            answer = await client.read_answer()
            assert (answer.status, answer.headers["x-request-id"]) == (status, "mine")
            assert "connection" not in answer.headers


@protocols
async def test_an_answer_to_head_has_no_body(http: str | None) -> None:
    """The connection stays in order."""
    async with connected(Api(), http) as client:
        await client.request("HEAD", "/v1/models")
        assert (await client.read_answer(has_body=False)).status == 200
        await client.request("GET", "/v1/models")
        assert (await client.read_answer()).json()["object"] == "list"


@protocols
async def test_requests_sent_ahead_are_answered_in_order(http: str | None) -> None:
    api = Api()
    api.upstream.script = ["Hello"]
    async with connected(api, http) as client:
        body = completion(stream=True)
        first = head("POST", PATH, f"Content-Length: {len(body)}", "X-Request-Id: 0") + body
        await client.send(first + b"".join(head("GET", "/health", f"X-Request-Id: {i}") for i in range(1, 4)))
        ids = [(await client.read_answer()).headers["x-request-id"] for _ in range(4)]
        assert ids == ["0", "1", "2", "3"]


@loops
@pytest.mark.parametrize("n", [40, 1000])
def test_requests_far_ahead_are_answered_in_order(loop: Callable[[], asyncio.AbstractEventLoop], n: int) -> None:
    """Requests that cannot be begun yet wait, and none is dropped."""

    async def scenario() -> None:
        api = Api()
        api.upstream.script = ["Hello"]
        body = completion(stream=True)
        first = head("POST", PATH, f"Content-Length: {len(body)}", "X-Request-Id: 0") + body
        async with connected(api) as client:
            sent = client.send(first + b"".join(head("GET", "/health", f"X-Request-Id: {i}") for i in range(1, n)))
            sending = asyncio.create_task(sent)
            for i in range(n):
                answer = await client.read_answer()
                assert (answer.status, answer.headers["x-request-id"]) == (200, str(i))
            await sending

    run(loop, scenario())


async def test_a_large_body_that_waits_is_read_completely() -> None:
    """Reading had stopped within it."""
    api = Api()
    body = completion(prompt="x" * 200_000)
    async with connected(api) as client:
        await client.request("POST", PATH, completion())
        await api.upstream.until(lambda: api.upstream.requests)
        sending = asyncio.create_task(client.request("POST", PATH, body))
        for _ in range(2):
            await api.upstream.until(lambda: api.upstream.requests)
            api.upstream.accept()
            api.upstream.finish()
            api.upstream.pushed.clear()
            assert (await client.read_answer()).status == 200
        await sending


@leaves
@loops
@pytest.mark.parametrize(
    "ahead",
    [head("GET", "/health") * 40, head("POST", PATH, "Content-Length: 999999") + b"x" * 200_000],
    ids=["requests", "bytes"],
)
def test_a_client_that_is_far_ahead_and_leaves_is_noticed(
    leave: Leave, loop: Callable[[], asyncio.AbstractEventLoop], ahead: bytes
) -> None:
    """The server reads nothing from it, but asks the kernel."""

    async def scenario() -> None:
        api = Api()
        async with connected(api) as client:
            await client.request("POST", PATH, completion())
            await api.upstream.until(lambda: api.upstream.requests)
            await client.send(ahead)
            leave(client)
            await api.upstream.until(lambda: api.upstream.cancels)
            assert len(api.upstream.requests) == 1

    run(loop, scenario())


async def test_a_head_does_not_time_out_while_the_server_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    api = Api()
    async with connected(api) as client:
        await client.request("POST", PATH, completion())
        await api.upstream.until(lambda: api.upstream.requests)
        await client.send(head("GET", "/health") * 16 + b"GET /hea")
        await asyncio.to_thread(threading.Event().wait, 0.2)
        api.upstream.accept()
        api.upstream.finish()
        for _ in range(17):
            assert (await client.read_answer()).status == 200
        await client.send(b"lth HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await client.read_answer()).status == 200


async def test_requests_before_a_bad_one_are_answered_first() -> None:
    """Each answer belongs to its own request."""
    async with connected(Api()) as client:
        await client.send(head("GET", "/health") * 3 + b"\x00garbage\r\n\r\n")
        assert [(await client.read_answer()).status for _ in range(4)] == [200, 200, 200, 400]
        assert await client.read_to_the_end() == b""


async def test_every_answer_before_a_bad_request_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they may take longer."""
    monkeypatch.setattr(http_protocol, "REFUSAL_GRACE_S", 60.0)
    api = Api()
    async with connected(api) as client:
        await client.send(
            (head("POST", PATH, f"Content-Length: {len(completion())}") + completion()) * 2 + b"\x00\r\n\r\n"
        )
        for status in (200, 200, 400):
            if status == 200:
                await api.upstream.until(lambda: api.upstream.requests)
                api.upstream.accept()
                api.upstream.finish()
                api.upstream.pushed.clear()
            assert (await client.read_answer()).status == status


async def test_a_bad_request_in_the_queue_is_refused_in_order() -> None:
    """Its head may be valid and only its body be bad."""
    bad = head("POST", PATH, "Transfer-Encoding: chunked") + b"zz\r\n"
    async with connected(Api()) as client:
        await client.send(head("GET", "/health") * 2 + bad + head("GET", "/health"))
        assert [(await client.read_answer()).status for _ in range(3)] == [200, 200, 400]
        assert await client.read_to_the_end() == b""


async def test_an_idle_connection_is_closed_in_the_end() -> None:
    """It may have sent no request, one request, or only blank lines."""
    async with live_http(Api().app, keep_alive_s=1.0) as port:
        clients = [await LiveClient.connect(port) for _ in range(3)]
        await clients[1].request("GET", "/health")
        await clients[1].read_answer()
        await clients[2].send(b"\r\n\r\n")
        assert await asyncio.gather(*(client.read_to_the_end() for client in clients)) == [b"", b"", b""]
        for client in clients:
            client.finish()


# Bodies.


@protocols
async def test_a_body_over_the_limit_is_refused(http: str | None) -> None:
    """The answer comes immediately, and then the connection is closed."""
    async with connected(Api(), http) as client:
        await client.send(head("POST", PATH, f"Content-Length: {1 << 40}") + b"{")
        answer = await client.read_answer()
        assert answer.status == 413 and answer.headers["connection"] == "close"
        assert error_of(answer.body)["code"] == "body_too_large"


@protocols
async def test_the_refusal_arrives_while_the_client_sends_its_body(http: str | None) -> None:
    """The client sends all of a body that the server does not want."""
    async with connected(Api(), http) as client:
        await client.send(head("POST", "/nothing", "Content-Length: 300000") + b"x" * 300_000)
        assert (await client.read_answer()).status == 404
        assert await client.read_to_the_end() == b""


@pytest.mark.parametrize("path", [PATH, "/nothing"])
async def test_answer_arrives_when_a_client_sends_all_of_a_large_body_first(path: str) -> None:
    """Most clients read only when they have sent everything (https://www.rfc-editor.org/rfc/rfc9112#section-9.6)."""
    async with connected(Api()) as client:
        await client.request("POST", path, b"x" * 27_000_000)
        assert (await client.read_answer()).status == (413 if path == PATH else 404)
        assert await client.read_to_the_end() == b""


CHUNKED = head("POST", PATH, "Transfer-Encoding: chunked")


def chunked(body: bytes, trailer: bytes = b"") -> bytes:
    return CHUNKED + b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer)


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
async def test_fields_of_a_trailer_are_never_taken_for_headers(step: int) -> None:
    """Fields of a trailer never count as fields of a head (https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1)."""
    api = Api()
    api.upstream.script = ["Hello"]
    trailer = b"Authorization: Bearer victim\r\nX-Stream-Id: mine\r\nIdempotency-Key: k\r\nX-Request-Id: other\r\n"
    raw = chunked(completion(), trailer) + head("GET", "/health", "X-Request-Id: next")
    async with connected(api) as client:
        for place in range(0, len(raw), step):
            await client.send(raw[place : place + step])
        answer = await client.read_answer()
        assert answer.status == 200 and answer.headers["x-stream-id"] != "mine"
        assert answer.headers["x-request-id"] != "other"
        assert (await client.read_answer()).headers["x-request-id"] == "next"
        for caller, n_streams in (("Bearer victim", 0), ("", 1)):
            await client.request("GET", "/v1/streams", b"", *([f"Authorization: {caller}"] if caller else []))
            assert len((await client.read_answer()).json()["data"]) == n_streams


@pytest.mark.parametrize("step", [1000, 1 << 20])
@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (CHUNKED + b"0\r\nX: " + b"x" * 400_000, 431),
        (CHUNKED + b"0\r\n" + b"x" * 400_000, 431),
        (CHUNKED + b"0\r\n" + b"X: y\r\n" * 129 + b"\r\n", 431),
        (CHUNKED + b"2;" + b"x" * 400_000, 400),
        (CHUNKED + b"2;a=" + b"x" * 400_000, 400),
        (CHUNKED + b"0" * 400_000, 400),
        (CHUNKED + b"1;%b\r\n{\r\n" % (b"x" * 3000) * 60, 400),
    ],
    ids=["value", "name", "fields", "extension", "extension-value", "size", "extensions"],
)
async def test_framing_without_an_end_is_refused(raw: bytes, status: int, step: int) -> None:
    """Trailers, extensions and sizes of chunks have the bounds of a head."""
    async with connected(Api()) as client:
        sending = asyncio.create_task(send_in_steps(client, raw, step))
        answer = await client.read_answer()
        assert answer.status == status and answer.headers["connection"] == "close"
        await sending


async def send_in_steps(client: LiveClient, raw: bytes, step: int) -> None:
    for place in range(0, len(raw), step):
        await client.send(raw[place : place + step])


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"01;a=b\r\nx\r\n"])
async def test_a_body_in_tiny_chunks_is_accepted(piece: bytes) -> None:
    """While content comes, its framing may be many times as large."""
    api = Api()
    api.upstream.script = ["Hello"]
    body = completion(prompt="x" * 30_000)
    async with connected(api) as client:
        await client.send(CHUNKED + b"".join(piece.replace(b"x", bytes([byte])) for byte in body) + b"0\r\n\r\n")
        assert (await client.read_answer()).status == 200


TINY = b"1\r\nx\r\n"


class ParsedSlices:
    """Counts the slices that are parsed, and the slices of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_slices = self.n_turns = self.most_in_a_turn = 0
        self._in_turn = 0
        feed = http_protocol.WatchfulProtocol.feed

        def counted(protocol: http_protocol.WatchfulProtocol, data: bytes) -> None:
            self.n_slices += 1
            if not self._in_turn:
                asyncio.get_running_loop().call_soon(self._end)
            self._in_turn += 1
            self.most_in_a_turn = max(self.most_in_a_turn, self._in_turn)
            feed(protocol, data)

        monkeypatch.setattr(http_protocol.WatchfulProtocol, "feed", counted)

    def _end(self) -> None:
        self.n_turns += 1
        self._in_turn = 0


@loops
@pytest.mark.parametrize("n_clients", [1, 3])
def test_tiny_chunks_are_parsed_one_slice_in_each_turn_of_the_loop(
    loop: Callable[[], asyncio.AbstractEventLoop], n_clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of chunks and clients does not matter. Content without framing is parsed without a pause."""
    slices = ParsedSlices(monkeypatch)

    async def scenario() -> None:
        api = Api()
        api.upstream.script = ["Hello"]
        body = completion(prompt="x" * 30_000)
        async with live_http(api.app) as port:
            clients = [await LiveClient.connect(port) for _ in range(n_clients)]
            request = CHUNKED + b"".join(TINY.replace(b"x", bytes([byte])) for byte in body) + b"0\r\n\r\n"
            for client in clients:
                await client.send(request)
            for client in clients:
                assert (await client.read_answer()).status == 200
            n_tiny = n_clients * len(request) // http_protocol.SLICE_BYTES
            assert slices.n_slices >= n_tiny and slices.most_in_a_turn <= 1 + n_clients
            slices.most_in_a_turn = 0
            await clients[0].request("POST", PATH, completion(prompt="x" * 1_000_000))
            assert (await clients[0].read_answer()).status == 200
            assert slices.most_in_a_turn > 4
            for client in clients:
                client.finish()

    run(loop, scenario())


@loops
def test_input_after_tiny_chunks_is_answered_in_order(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The input is a request, an offer of another protocol, or invalid."""

    async def scenario() -> None:
        api = Api()
        chunked = CHUNKED + TINY * 2000 + b"0\r\n\r\n"
        offer = head("GET", "/health/live", "Connection: Upgrade", "Upgrade: h2c")
        async with connected(api) as client:
            await client.send(chunked + head("GET", "/health/live") + offer + chunked + b"garbage\r\n\r\n")
            statuses = [(await client.read_answer()).status for _ in range(5)]
            assert statuses == [400, 200, 200, 400, 400]
            assert await client.read_to_the_end() == b""

    run(loop, scenario())


@leaves
@loops
def test_a_client_that_leaves_among_tiny_chunks_is_noticed(
    leave: Leave, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """It is noticed even while its input waits for a turn."""

    async def scenario() -> None:
        begun, left = asyncio.Event(), asyncio.Event()
        n_bytes = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal n_bytes
            begun.set()
            while (message := await receive())["type"] == "http.request":
                n_bytes += len(message["body"])
            left.set()

        async with live_http(app) as port:
            client = await LiveClient.connect(port)
            await client.send(CHUNKED + TINY * 30_000)
            await asyncio.wait_for(begun.wait(), TIMEOUT_S)
            leave(client)
            await asyncio.wait_for(left.wait(), TIMEOUT_S)
            assert n_bytes <= 30_000

    run(loop, scenario())


async def test_reading_stops_while_an_application_reads_no_tiny_chunks() -> None:
    """What is held of the body is bounded, as for any other body."""
    n_read = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal n_read
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await has_sent.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        n_read = len((await receive())["body"])
        await send({"type": "http.response.body", "body": b""})

    has_sent = asyncio.Event()
    async with live_http(app) as port:
        client = await LiveClient.connect(port)
        sending = asyncio.create_task(client.send(CHUNKED + TINY * 1_000_000))
        await client.read_head()
        has_sent.set()
        assert await client.read_chunk() == b"x"
        assert await client.read_chunk() == b""
        sending.cancel()
        client.finish()
    assert 0 < n_read < 2 * 65536


async def test_a_trailer_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same time as a head."""
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    async with connected(Api()) as client:
        await client.send(CHUNKED + b"0\r\nX: ")
        await client.send(b"y" * 5000)
        assert (await client.read_answer()).status == 408
        assert await client.read_to_the_end() == b""


# Heads.


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: x\r\n" % i for i in range(20_000)) + b"\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 2_000_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: x\r\n" * 129 + b"\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
    ids=["fields", "bytes", "path", "one-field-too-many", "whole-in-one-read"],
)
async def test_a_head_that_is_too_large_is_refused(raw: bytes) -> None:
    """It is refused before it is complete, or when it is. Other connections go on."""
    async with live_http(Api().app) as port:
        client = await LiveClient.connect(port)
        try:
            await client.send(raw)
        except ConnectionError:
            pass  # closed before all was sent
        answer = await client.read_to_the_end()
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
        client.finish()
        other = await LiveClient.connect(port)
        await other.request("GET", "/health")
        assert (await other.read_answer()).status == 200
        other.finish()


async def test_a_large_head_within_the_limits_is_accepted() -> None:
    async with connected(Api()) as client:
        await client.request("GET", "/health", b"", *(f"X-{i}: {'x' * 400}" for i in range(100)))
        assert (await client.read_answer()).status == 200


async def test_a_head_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time counts from its first byte."""
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.05)
    async with connected(Api()) as client:
        await client.send(b"GET /health HTTP/1.1\r\nX: ")
        answer = await client.read_answer()
        assert answer.status == 408 and error_of(answer.body)["code"] == "request_timeout"
        assert await client.read_to_the_end() == b""


@pytest.mark.parametrize("raw", [b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"POST / HTTP/1\r\n\r\n"])
async def test_invalid_input_is_refused_in_the_envelope(raw: bytes) -> None:
    """The refusal has a request id."""
    async with connected(Api()) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert answer.status == 400 and error_of(answer.body)["code"] == "bad_request"
        assert answer.headers["x-request-id"] and answer.headers["connection"] == "close"
        assert await client.read_to_the_end() == b""


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/9.9",
        b"GET / HTTP/2.0",
        b"GET / HTTP/1.2",
        b"GET / HTTP/0.9",
        b"GET / HTTP/3.0",
        b"GET /",
        b"PRI * HTTP/2.0",
    ],
)
async def test_another_version_is_refused_by_its_status(line: bytes) -> None:
    async with connected(Api()) as client:
        await client.send(line + b"\r\nHost: localhost\r\n\r\nSM\r\n\r\n")
        answer = await client.read_answer()
        assert answer.status == 505 and error_of(answer.body)["code"] == "unsupported_http_version"
        assert answer.headers["connection"] == "close" and await client.read_to_the_end() == b""


@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "gzip", "identity", "xchunked", "deflate\r\nTransfer-Encoding: chunked"]
)
async def test_another_transfer_coding_is_refused_by_its_status(coding: str) -> None:
    """It is not read as plain bytes."""
    api, body = Api(), completion()
    async with connected(api) as client:
        await client.send(
            head("POST", PATH, f"Transfer-Encoding: {coding}") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        )
        answer = await client.read_answer()
        assert answer.status == 501 and error_of(answer.body)["code"] == "unsupported_transfer_coding"
        assert answer.headers["connection"] == "close" and await client.read_to_the_end() == b""
        assert not api.upstream.pushed


async def test_a_refusal_arrives_while_the_client_sends_more() -> None:
    """The server reads and drops it, so that no reset overtakes the answer."""
    async with connected(Api()) as client:
        await client.send(head("POST", PATH, "Transfer-Encoding: gzip, chunked") + b"x" * 20_000_000)
        assert (await client.read_answer()).status == 501
        assert await client.read_to_the_end() == b""


async def test_a_client_that_is_refused_and_stays_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for it is bounded."""
    monkeypatch.setattr(http_protocol, "LINGER_IDLE_S", 0.05)
    async with connected(Api()) as client:
        await client.send(b"\x00garbage\r\n\r\n")
        await client.cut_off()


async def test_the_number_of_refused_clients_that_linger_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients are answered, and their connections closed."""
    monkeypatch.setattr(http_protocol, "MAX_LINGERING", 0)
    async with connected(Api()) as client:
        await client.send(b"GARBAGE\r\n\r\n")
        assert (await client.read_answer()).status == 400
        await client.send(b"more")  # nobody is there to take it
        await client.cut_off()


async def test_no_refusal_is_written_inside_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed, and its request cancelled."""
    monkeypatch.setattr(http_protocol, "REFUSAL_GRACE_S", 0.05)
    api = Api()
    async with connected(api) as client:
        await client.request("POST", PATH, completion(stream=True))
        await api.upstream.until(lambda: api.upstream.requests)
        api.upstream.accept()
        api.upstream.speak("x")
        await client.read_head()
        await client.read_chunk()
        await client.send(b"\x00garbage\r\n\r\n")
        assert b"HTTP/1.1" not in await client.read_to_the_end()
        await api.upstream.until(lambda: api.upstream.cancels)


async def test_invalid_input_is_refused_before_an_answer_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request of the connection is cancelled."""
    monkeypatch.setattr(http_protocol, "REFUSAL_GRACE_S", 0.05)
    api = Api()
    async with connected(api) as client:
        await client.request("POST", PATH, completion())
        await api.upstream.until(lambda: api.upstream.requests)
        await client.send(b"\x00garbage\r\n\r\n")
        assert error_of((await client.read_answer()).body)["code"] == "bad_request"
        assert await client.read_to_the_end() == b""
        await api.upstream.until(lambda: api.upstream.cancels)


async def test_a_stream_with_a_fault_ends_without_its_last_chunk() -> None:
    """So a client does not take a part for the whole."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise ValueError("broken")

    async with live_http(app) as port:
        client = await LiveClient.connect(port)
        await client.request("GET", "/")
        assert (await client.read_head())[0] == 200
        assert await client.read_to_the_end() == b"4\r\npart\r\n"
        client.finish()


@protocols
async def test_an_offer_of_another_protocol_is_ignored(http: str | None) -> None:
    """Some clients offer HTTP/2 with every request, and go on with HTTP/1.1 if that is ignored."""
    api = Api()
    api.upstream.script = ["Hello"]
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA")
    async with connected(api, http) as client:
        for _ in range(2):
            await client.request("POST", PATH, completion(), *offer)
            assert (await client.read_answer()).json()["choices"][0]["text"] == "Hello"
            await client.request("GET", "/health", b"", "Connection: keep-alive, upgrade", "Upgrade: websocket")
            assert (await client.read_answer()).status == 200
        await client.request("GET", "/health", b"", "Connection: Upgrade, close", "Upgrade: h2c")
        assert (await client.read_answer()).headers["connection"] == "close"


async def test_any_number_of_offers_is_ignored() -> None:
    """Each offer makes the parser begin again."""
    async with connected(Api()) as client:
        offer = head("GET", "/health", "Connection: Upgrade", "Upgrade: h2c")
        sending = asyncio.create_task(client.send(offer * 1500))
        for _ in range(1500):
            assert (await client.read_answer()).status == 200
        await sending


async def test_a_tunnel_is_refused() -> None:
    async with connected(Api()) as client:
        await client.send(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        assert (await client.read_answer()).status == 400


@protocols
@pytest.mark.parametrize(("n_bytes", "statuses"), [(1 << 40, [413]), (None, [100, 200])], ids=["too-long", "right"])
async def test_a_client_may_ask_before_it_sends_a_body(
    http: str | None, n_bytes: int | None, statuses: list[int]
) -> None:
    """`Expect: 100-continue`: a body that would be refused is never sent."""
    api, body = Api(), completion()
    api.upstream.script = ["Hello"]
    async with connected(api, http) as client:
        await client.send(head("POST", PATH, f"Content-Length: {n_bytes or len(body)}", "Expect: 100-continue"))
        seen = [(await client.read_answer()).status]
        if seen == [100]:
            await client.send(body)
            seen.append((await client.read_answer()).status)
        assert seen == statuses


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /v1/modèls HTTP/1.1\r\n\r\n".encode(),
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /health HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
        *(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + rest
            for rest in (
                b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
                b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
                b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\n\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n{}\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\nhello",
                b"Content-Length: 5, 5\r\n\r\nhello",
                b"Content-Length: +5\r\n\r\nhello",
                b"Content-Length: 0x5\r\n\r\nhello",
                b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
                b"Content-Length:\r\n\r\n",
                b"Content-Length : 5\r\n\r\nhello",
                b"X: a\r\n b\r\n\r\n",
                b" X: a\r\n\r\n",
                b"X: a\x00b\r\n\r\n",
                b"X: a\rb\r\n\r\n",
                b"X\r\n\r\n",
                b": x\r\n\r\n",
            )
        ),
    ],
)
async def test_an_ambiguous_request_is_refused(raw: bytes) -> None:
    """With two meanings it could be smuggled past a proxy."""
    api = Api()
    async with connected(api) as client:
        await client.send(raw)
        answer = await client.read_answer()
        assert answer.status == 400 and error_of(answer.body)["code"] == "bad_request"
        assert await client.read_to_the_end() == b""
        assert not api.upstream.pushed


async def test_a_client_of_http_1_0_need_not_name_the_host() -> None:
    async with connected(Api()) as client:
        await client.send(b"GET /health/live HTTP/1.0\r\n\r\n")
        assert (await client.read_answer()).status == 200


async def test_blanks_around_a_value_are_removed() -> None:
    """They are not part of the value (https://www.rfc-editor.org/rfc/rfc9110#section-5.5)."""
    api = Api()
    body = completion(stream=True, sluiceway={"stream_id": "s", "resumable": True})
    async with connected(api) as client:
        await client.request("POST", PATH, body, "Authorization: Bearer one \t", "X-Request-Id:\t mine \t")
        await api.upstream.until(lambda: api.upstream.requests)
        api.upstream.accept()
        api.upstream.speak("a")
        api.upstream.finish()
        answer = await client.read_answer()
        assert answer.headers["x-request-id"] == "mine"
        fields = ("Accept: text/event-stream \t", "Last-Event-ID: 1 ", "Authorization: \t Bearer one")
        await client.request("GET", "/v1/streams/s", b"", *fields)
        rest = (await client.read_answer()).body
        assert rest and answer.body.endswith(rest) and rest.startswith(b"id: 2\n")
        await client.request(
            "POST", PATH, completion(), "Content-Encoding: identity ", "Idempotency-Key: k ", "X-Stream-Id: t "
        )
        await api.upstream.until(lambda: len(api.upstream.requests) == 2)
        api.upstream.accept()
        api.upstream.finish()
        assert (await client.read_answer()).headers["x-stream-id"] == "t"


async def test_the_body_of_a_cancellation_does_not_close_the_connection() -> None:
    """It may arrive with the head, or later."""
    api = Api()
    async with connected(api) as client:
        for body in (b"", b"{}", b"x" * 10_000):
            await client.request("POST", "/v1/streams/none/cancel", body)
            answer = await client.read_answer()
            assert answer.status == 404 and answer.headers.get("connection") != "close"
        await client.send(head("POST", "/v1/streams/none/cancel", "Content-Length: 2"))
        await client.send(b"{}")
        assert (await client.read_answer()).status == 404
        await client.request("GET", "/health")
        assert (await client.read_answer()).status == 200
