"""The HTTP/1.1 protocol of the server: uvicorn's, with limits for heads and with a watch over each client.

* The head of a request is bounded in bytes, in fields and in time. So is the wait for the first head. The framing of a
  chunked body has the same bounds: the sizes and extensions of its chunks, and the trailer. No field of a trailer
  counts as a field of the head.
* The server notices immediately when a client leaves, also if it has sent more requests ahead, or has not taken what
  was sent to it. (uvicorn then stops reading, or marks only the last request as disconnected.) From a client that has
  sent very much ahead, the server reads nothing more. It then asks the kernel regularly whether the client is there.
* A transfer coding or an HTTP version that the server does not know is refused with the status for it.
* Input that costs much parsing is parsed in slices, one in each turn of the loop: see `ParsingTurns`.
* An offer to speak another protocol (`Upgrade: h2c`) is ignored. The parser alone would accept it and lose the body.
* What cannot be parsed is answered in the usual envelope, after the answers to earlier requests, and never inside
  another answer. The server reads and drops what such a client still sends, so that the client gets the answer.
* The owner of a streamed answer may write to the transport directly: see `chunks`.
* A client of HTTP/1.0, which does not know chunks, gets none: see `until_close`.
* Buffers are small, so that the server soon sees a client that stops reading. A client that takes nothing is cut off.
* A client whose machine or network has failed is noticed within a minute, even while it waits for an answer of which
  nothing is written yet: the kernel sends keep-alive probes.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar, NoReturn, cast
from uuid import uuid4

import httptools
import msgspec
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sluiceway.api.http.chunks import ChunkWriter, break_off, offer_chunks, takes_no_chunks, until_close
from sluiceway.api.http.head import refusal_head
from sluiceway.protocols.common.errors import error_body, refusal_for_status
from sluiceway.refusals import OVERLOADED

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 20.0
MAX_AHEAD_REQUESTS = 16
"""How many requests may wait behind the current one before the server stops reading."""
MAX_AHEAD_BYTES = 64 * 1024
"""And how many bytes of them."""
LOOK_EVERY_S = 0.25
"""How often the kernel is asked whether a client is still there while nothing is read from it."""

REFUSAL_GRACE_S = 5.0
"""How long each answer to an earlier request may take before invalid input that came later is refused."""

LINGER_S = 30.0
LINGER_IDLE_S = 5.0
"""After the answer, how long a client may go on sending, and how long it may be silent, before its connection ends."""
LINGER_BYTES_PER_S = 64 * 1024 * 1024
MAX_LINGERING = 64
"""How many connections may linger. Any other connection ends as soon as the answer is written."""

SLICE_BYTES = 4 * 1024
"""How much is parsed without a pause: a hundred requests at most. The bounds are checked after each slice."""
_CALLS_AT_ONCE = 512
"""After this many fields and chunks, the rest of what was read waits for another turn of the loop. A slice of chunks of
one byte each has more, and takes three milliseconds."""
_CONTENT_WORTH = 16
"""How many bytes of framing each byte of a chunked body may have."""

SEND_TIMEOUT_S = 60.0

_NOTSENT_LOWAT = 25
"""TCP_NOTSENT_LOWAT of Linux. Not every version of Python has a name for it."""

_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 30, 10, 3
"""When the kernel begins to probe a silent connection, how often it does, and after how many probes it gives up."""

_FULL = msgspec.structs.replace(OVERLOADED, message="Too many connections are open; try again later.")

_UNKNOWN_VERSION = ("Invalid HTTP version", "Pause on PRI/Upgrade", "Expected HTTP/2 Connection Preface")
"""The parser's errors for an unknown version, and for the first line of HTTP/2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """How many bytes may wait for a client below the backlog.

    `write_bytes` bounds the buffer of the transport, `unsent_bytes` what the kernel has not sent (0: no bound). Bytes
    that are sent and not confirmed have no bound: they make a connection fast.

    `send_timeout_s` is how long a client may take nothing that is sent to it, where no response watches its readers.
    """

    write_bytes: int = 0
    unsent_bytes: int = 4 * 1024
    send_timeout_s: float = SEND_TIMEOUT_S


class ParsingTurns:
    """The connections that have read more than is parsed in one turn of the loop. One of them continues in each turn.

    So many clients that send tiny chunks at the same time hold up the loop no longer than one of them does.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn of the loop, after the connections that wait already."""
        self._waiting.append(go_on)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._take_turn)
        go_on()


class _Reading(FlowControl):
    """Pauses reading from `hold` to `release`, whatever uvicorn and the application ask for meanwhile."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self._transport.pause_reading()

    def release(self) -> None:
        """Read on, unless uvicorn has paused reading meanwhile."""
        self.is_held = False
        if not (self.read_paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def resume_reading(self) -> None:
        if self.is_held:
            self.read_paused = False
        elif not self._transport.is_closing():
            super().resume_reading()


class WatchfulProtocol(HttpToolsProtocol):
    """Parses the requests of one connection, starts the application for each, and watches the client."""

    flow: _Reading
    _lingering: ClassVar[set[WatchfulProtocol]] = set()
    """Connections of this process that are answered, and read until their clients have sent everything."""

    def __init__(self, *args: Any, buffers: Buffers, turns: ParsingTurns, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers = buffers
        self._turns = turns
        self._send_timer: asyncio.TimerHandle | None = None
        self._untaken_bytes = 0
        """How much the client had not taken when the timer was set."""
        self._answering: RequestResponseCycle | None = None
        self._chunks: ChunkWriter | None = None
        """The writer of the current answer."""
        self._is_in_head = self._is_in_body = False
        self._is_after_size = False
        """True after the head of a chunk. What follows the last chunk, which has no content, is the trailer."""
        self._n_content_bytes = 0
        """Bytes of content of all bodies so far."""
        self._framing_bytes = 0
        """Bytes of a chunked body that are no content, less what its content allows."""
        self._unparsed = b""
        """What was read but is not parsed yet."""
        self._n_calls = 0
        """Fields and chunks so far."""
        self._waits_for_turn = False
        self._look_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._linger_until_s = 0.0
        self._has_sent_on = False
        self._head_timer: asyncio.TimerHandle | None = None
        """The timer of a head, or of a trailer."""
        self._head_bytes = 0
        """Bytes that were read of a head that is not complete yet."""
        self._field_bytes = 0
        """Bytes of its parsed names and values: this bounds a head that comes in one read too."""
        self._n_fields = 0
        self._ahead_bytes = 0
        self._refusal_status: int | None = None
        """The status of a refusal that follows when earlier requests are answered. Nothing more is parsed."""
        self._refusal_timer: asyncio.TimerHandle | None = None
        self.is_turned_away = False
        """True when there is no room for this connection: its first request, whatever it is, is answered with a 503."""

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Reading(transport)
        self._set_buffers(transport)
        _ask_whether_it_is_there(transport.get_extra_info("socket"))
        self._arm_keep_alive()
        if self.is_turned_away:  # such a connection uses one of few file descriptors
            self._head_timer = self.loop.call_later(LINGER_IDLE_S, self._refuse, 503)

    def _set_buffers(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self._buffers.write_bytes)
        connection = transport.get_extra_info("socket")
        if self._buffers.unsent_bytes and sys.platform == "linux":
            with contextlib.suppress(OSError):  # not every kernel that calls itself Linux has it
                connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, self._buffers.unsent_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_send_timer()
        for timer in (self._look_timer, self._linger_timer, self._refusal_timer):
            if timer is not None:
                timer.cancel()
        self._lingering.discard(self)
        self._unparsed = b""
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self._disconnect()

    def eof_received(self) -> None:
        """The client has closed its side: it has left, even if bytes still wait to be sent to it."""
        if self._is_answering:
            self._disconnect()
            self.transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self._answering is not None and not self._answering.response_complete

    def _disconnect(self) -> None:
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
            if self._chunks is not None:
                self._chunks.on_lost()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm_send_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()
        if self._chunks is not None:
            self._chunks.on_writable()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; break it off if its client has not taken the last answer: closing would wait."""
        if self.transport.get_write_buffer_size():
            break_off(self.transport)
        else:
            super().timeout_keep_alive_handler()

    def _arm_send_timer(self) -> None:
        self._stop_send_timer()
        self._untaken_bytes = self.transport.get_write_buffer_size()
        self._send_timer = self.loop.call_later(self._buffers.send_timeout_s, self._give_up_silent)

    def _give_up_silent(self) -> None:
        is_watched = self._is_answering and self._chunks is not None and self._chunks.is_watched
        if is_watched or self.transport.get_write_buffer_size() < self._untaken_bytes:
            self._arm_send_timer()
        else:
            self._disconnect()
            break_off(self.transport)

    def _stop_send_timer(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        is_bare = takes_no_chunks(cast("Scope", cycle.scope))
        self._chunks = ChunkWriter(cycle, unsent_bytes=self._buffers.unsent_bytes)
        offer_chunks(cast("Scope", cycle.scope), self._chunks)
        self._ahead_bytes = 0
        super()._start_asgi_task(cycle, until_close(app, cycle) if is_bare else app)

    # Bytes.

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.is_turned_away:
            self._refuse(503)
        if self in self._lingering:
            self._drop(len(data))
        elif self.flow.is_held:
            self._unparsed += data
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Parse what was read, as far as it may be."""
        n_calls = self._n_calls
        for place in range(0, len(data), SLICE_BYTES):
            if self._is_far_ahead:
                self._hold(data[place:])
                return
            if self._n_calls - n_calls > _CALLS_AT_ONCE:
                self._wait_for_turn(data[place:])
                return
            self._parse(data[place : place + SLICE_BYTES])
            if self._refusal_status is not None:
                return
        if self._is_far_ahead:
            self._hold(b"")
        elif self.pipeline:
            self.flow.resume_reading()  # reading shows immediately when the client leaves
        elif not self._is_in_head and not self._is_answering:
            self._arm_keep_alive()  # blank lines between requests do not begin a request

    def _parse(self, piece: bytes) -> None:
        n_content_bytes, was_after_size = self._n_content_bytes, self._is_after_size
        if self.pipeline:
            self._ahead_bytes += len(piece)
        self.feed(piece)
        if self._is_in_head:
            self._head_bytes += len(piece)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431)
        elif self._is_in_body:
            n_new_bytes = self._n_content_bytes - n_content_bytes
            self._bound_framing(len(piece), n_new_bytes)
            if was_after_size and self._is_after_size and not n_new_bytes and self._head_timer is None:
                self._start_head_timer()  # content would have come by now: this is the trailer

    def _bound_framing(self, n_bytes: int, n_content_bytes: int) -> None:
        """Bound extensions, long sizes and trailers: the parser itself accepts any amount of them."""
        self._framing_bytes = max(0, self._framing_bytes + n_bytes - n_content_bytes * (1 + _CONTENT_WORTH))
        if self._framing_bytes > MAX_HEAD_BYTES:
            self._refuse(431 if self._is_after_size else 400)

    def _arm_keep_alive(self) -> None:
        """Restart the keep-alive timer. Uvicorn stops it with each byte, and starts it only after a response."""
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # Requests that come ahead of their answers.

    @property
    def _is_far_ahead(self) -> bool:
        return len(self.pipeline) >= MAX_AHEAD_REQUESTS or self._ahead_bytes > MAX_AHEAD_BYTES

    def _hold(self, rest: bytes) -> None:
        """Stop reading until earlier requests are answered. Meanwhile no time runs for a head that is not complete."""
        self._unparsed = rest
        self.flow.hold()
        self._stop_head_timer()
        self._look_timer = self.loop.call_later(LOOK_EVERY_S, self._look_whether_it_left)

    def _wait_for_turn(self, rest: bytes) -> None:
        self._unparsed = rest
        self.flow.hold()
        self._waits_for_turn = True
        self._turns.wait(self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._read_on()

    def _read_on(self) -> None:
        is_over = self.transport.is_closing() or self._refusal_status is not None
        if is_over or self._waits_for_turn or not self.flow.is_held or self._is_far_ahead:
            return
        self._stop_holding()
        if self._is_in_head and self._head_timer is None:
            self._start_head_timer()
        rest, self._unparsed = self._unparsed, b""
        self._take(rest)

    def _stop_holding(self) -> None:
        self.flow.release()
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = None

    def _look_whether_it_left(self) -> None:
        """Ask the kernel whether the client has left: while nothing is read, the end of the input is not seen."""
        poller = select.poll()
        poller.register(self.transport.get_extra_info("socket").fileno(), getattr(select, "POLLRDHUP", 0))
        if poller.poll(0):  # poll always reports errors and hang-ups
            self._disconnect()
            self.transport.abort()
        else:
            self._look_timer = self.loop.call_later(LOOK_EVERY_S, self._look_whether_it_left)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._refusal_status is not None:
            if not self._is_answering:
                self._refuse_now()
            else:
                self._start_grace()
        elif self.flow.is_held:
            self.loop.call_soon(self._read_on)

    # The parser.

    def feed(self, data: bytes) -> None:
        """Parse a slice of what was read."""
        rest: bytes | None = data
        while rest is not None:
            rest = self._feed_up_to_an_offer(rest)

    def _feed_up_to_an_offer(self, data: bytes) -> bytes | None:
        """Parse up to an offer of another protocol. Return what must be parsed again, if anything."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self.parser.get_method() == b"CONNECT":
                self._refuse(400)  # this server is no proxy
            elif self._refusal_status is None:
                return self._without_offer(data[error.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(505 if str(error) in _UNKNOWN_VERSION else 400)
        return None

    def _without_offer(self, rest: bytes) -> bytes:
        """The request without its offer of another protocol, to be parsed again: the parser stops after such a head.

        A server may ignore the offer: https://www.rfc-editor.org/rfc/rfc9110#section-7.8
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % field for field in map(_without_offer, self.headers) if field is not None]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # like the parser that it replaces
        return b"\r\n".join([*lines, b"", rest])

    # Heads.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._head_bytes = self._field_bytes = self._n_fields = 0
        self._start_head_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        self._n_fields += 1
        self._n_calls += 1
        if self._n_fields > MAX_HEADERS or self._field_bytes > MAX_HEAD_BYTES:
            self._break(431, "too many headers, or too large ones")
        if self._is_in_head:  # else it is a field of the trailer: https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1
            super().on_header(name, value.strip(b" \t"))  # https://www.rfc-editor.org/rfc/rfc9110#section-5.5

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        self._is_in_head = False
        if self._refusal_status is not None or self.parser.should_upgrade():
            return
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._break(505, "a version that is not spoken here")
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts > 1 or (n_hosts == 0 and version != "1.0"):
            # "A server MUST respond with a 400": https://www.rfc-editor.org/rfc/rfc9112#section-3.2
            self._break(400, "not one host")
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            # The parser knows `chunked` only, and would read a body in another coding as plain bytes.
            self._break(501, "an unknown transfer coding")
        scheme, separator, rest = self.url.partition(b"://")
        if separator and b"/" not in scheme:
            # "ignore the received Host header field": https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2
            host = re.split(rb"[/?#]", rest, maxsplit=1)[0]
            self.headers[:] = [(b"host", host), *(field for field in self.headers if field[0] != b"host")]
        self._is_in_body, self._is_after_size = True, False
        self._framing_bytes = self._field_bytes = self._n_fields = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_content_bytes += len(body)
        self._stop_head_timer()
        super().on_body(body)

    def on_chunk_header(self) -> None:
        self._n_calls += 1
        self._is_after_size = True

    def on_chunk_complete(self) -> None:
        self._is_after_size = False

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._stop_head_timer()
            self._is_in_body = False
            super().on_message_complete()

    def _break(self, status: int, why: str) -> NoReturn:
        """Refuse the input, and stop the parser."""
        self._refuse(status)
        raise httptools.HttpParserError(why)

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, 408)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # Refusals.

    def _refuse(self, status: int) -> None:
        """Answer invalid input after all earlier requests are answered, and close the connection."""
        if self._refusal_status is not None:
            return
        self._refusal_status = status
        self._stop_head_timer()
        if self._is_in_body and self.pipeline:
            self.pipeline.popleft()  # the refused request is the last one that waits
        elif self._is_in_body or not self._is_answering:
            self._refuse_now()
            return
        self._hold(b"")
        self._start_grace()

    def _start_grace(self) -> None:
        if self._refusal_timer is not None:
            self._refusal_timer.cancel()
        self._refusal_timer = self.loop.call_later(REFUSAL_GRACE_S, self._refuse_now)

    def _refuse_now(self) -> None:
        """Send the refusal. If an answer to another request is half written, only close the connection."""
        if self.transport.is_closing() or self in self._lingering or self._refusal_status is None:
            return
        is_amid = self._answering is not None and self._is_answering and self._answering.response_started
        self._disconnect()
        self.pipeline.clear()
        self._stop_holding()
        self._unset_keepalive_if_required()
        if is_amid and not self._is_in_body:
            self.transport.abort()
            return
        if not is_amid:
            self.transport.write(_raw_refusal(self._refusal_status))
        self._close_gently()

    def _close_gently(self) -> None:
        """Send nothing more, and drop what the client sends until it closes its side too.

        Closing with unread bytes resets the connection, and the reset can overtake the answer:
        https://www.rfc-editor.org/rfc/rfc9112#section-9.6
        """
        if len(self._lingering) >= MAX_LINGERING:
            self.transport.close()
            return
        self._lingering.add(self)
        self._linger_until_s = self.loop.time() + LINGER_S
        self.transport.write_eof()
        self.flow.resume_reading()
        self._linger_on()

    def _linger_on(self) -> None:
        self._has_sent_on = False
        self._linger_timer = self.loop.call_later(LINGER_IDLE_S, self._end_lingering)

    def _end_lingering(self) -> None:
        if self._has_sent_on and self.loop.time() < self._linger_until_s:
            self._linger_on()
        else:
            break_off(self.transport)

    def _drop(self, n_bytes: int) -> None:
        """Drop bytes, and limit how fast they are read, so that other clients are served meanwhile."""
        self._has_sent_on = True
        self.flow.pause_reading()
        self.loop.call_later(n_bytes / LINGER_BYTES_PER_S, self.flow.resume_reading)


def _ask_whether_it_is_there(connection: socket.socket) -> None:
    """Turn on TCP keep-alive probes (https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


def _without_offer(field: tuple[bytes, bytes]) -> tuple[bytes, bytes] | None:
    name, value = field
    if name == b"upgrade":
        return None
    if name == b"connection":
        words = [word.strip() for word in value.split(b",")]
        value = b", ".join(word for word in words if word.lower() != b"upgrade")
    return name, value


def _raw_refusal(status: int) -> bytes:
    refusal = _FULL if status == _FULL.status else refusal_for_status(status)
    body = error_body(refusal)
    more = ((b"connection", b"close"), (b"x-request-id", uuid4().hex.encode()))
    lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
    lines += [b"%s: %s" % header for header in refusal_head(len(body), refusal, more).headers]
    return b"\r\n".join([*lines, b"", body])
