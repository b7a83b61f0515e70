"""uvicorn's HTTP/1.1 protocol with what it lacks: limits for heads, and an eye on the client at every moment.

* A request's head is bounded in bytes, in fields and in time, and so is the time before the first one.
* A client that leaves is noticed at once, also when it has sent further requests ahead (uvicorn then stops reading, and
  marks only the last of them as disconnected) or when what it was sent still waits for it.
* An offer to speak another protocol (`Upgrade: h2c`) is passed over; the parser would take it and lose the body.
* What cannot be parsed is answered in the usual envelope, and never in the midst of another answer.
* The owner of a streamed answer may write to the transport by itself: see `chunks`.
* A client of HTTP/1.0 gets no chunks, which it does not know: see `until_close`.
* Buffers are small, so that a client that stops reading shows soon; one that takes nothing at all is cut off.
* A client that is gone without a word, with its machine or its network, is noticed within a minute also while it waits
  for an answer of which nothing is written yet: the kernel asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sluiceway.procs.api.chunks import ChunkWriter, break_off, offer_chunks
from sluiceway.procs.api.head import refusal_head
from sluiceway.procs.api.until_close import takes_no_chunks, until_close
from sluiceway.protocols.openai.errors import error_body, refusal_for_status

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 20.0
MAX_AHEAD_REQUESTS = 16
"""Requests that may wait behind the one that is being answered."""
MAX_AHEAD_BYTES = 64 * 1024
"""What may be read of them."""

SEND_TIMEOUT_S = 60.0

_NOTSENT_LOWAT = 25
"""TCP_NOTSENT_LOWAT of Linux, which not every Python has a name for."""

_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 30, 10, 3
"""When the kernel asks a client that says nothing and is told nothing whether it is there, and when it gives it up."""

_REASONS = {400: b"Bad Request", 408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """What may wait for a client, outside of what is waited for inside: bytes.

    `write_bytes` is the transport's, `unsent_bytes` the kernel's (0: as much as it likes). What is on its way has no
    limit: a reader that stopped gets all of it, and for one that reads it is what makes it fast.

    `send_timeout_s` is how long a client may take nothing of what is sent to it, where nobody else looks after that.
    """

    write_bytes: int = 0
    unsent_bytes: int = 4 * 1024
    send_timeout_s: float = SEND_TIMEOUT_S


class WatchfulProtocol(HttpToolsProtocol):
    """See the module's docstring."""

    def __init__(self, *args: Any, buffers: Buffers, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._buffers = buffers
        self._send_timer: asyncio.TimerHandle | None = None
        self._untaken_bytes = 0
        """What the client had yet to take when the timer was set."""
        self._answering: RequestResponseCycle | None = None
        self._chunks: ChunkWriter | None = None
        """Of the answer that is being written."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Read of a head that is not whole yet."""
        self._field_bytes = 0
        """Its names and values as parsed: a head that comes in one read is bounded too."""
        self._ahead_bytes = 0
        self._is_refused = False

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_buffers(transport)
        _ask_whether_it_is_there(transport.get_extra_info("socket"))
        self._arm_keep_alive()

    def _set_buffers(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=self._buffers.write_bytes)
        connection = transport.get_extra_info("socket")
        if self._buffers.unsent_bytes and sys.platform == "linux":
            with contextlib.suppress(OSError):  # not all that passes for Linux has it
                connection.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, self._buffers.unsent_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_send_timer()
        self._unset_keepalive_if_required()
        self._disconnect()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client sends nothing more: it has left. Bytes that it has not taken shall not hide that."""
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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm_send_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()
        if self._chunks is not None:
            self._chunks.on_writable()

    def timeout_keep_alive_handler(self) -> None:
        """Between requests: a client that has not even taken the last answer is cut off, since to close would wait."""
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
        self._chunks = ChunkWriter(cycle, is_bare=is_bare, unsent_bytes=self._buffers.unsent_bytes)
        offer_chunks(cast("Scope", cycle.scope), self._chunks)
        self._ahead_bytes = 0
        super()._start_asgi_task(cycle, until_close(app, cycle) if is_bare else app)

    # Bytes.

    def data_received(self, data: bytes) -> None:
        if self.pipeline:
            self._ahead_bytes += len(data)
        self._unset_keepalive_if_required()
        self._feed(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431)
        if self.pipeline:
            self._bound_what_is_ahead()
        elif self._head_timer is None and not self._is_answering:
            self._arm_keep_alive()  # blank lines between requests begin nothing

    def _arm_keep_alive(self) -> None:
        """uvicorn disarms it with every byte that arrives, and arms it only after an answer."""
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _bound_what_is_ahead(self) -> None:
        # To go on reading is the only way to see the client leave.
        if len(self.pipeline) > MAX_AHEAD_REQUESTS or self._ahead_bytes > MAX_AHEAD_BYTES:
            self._disconnect()
            self.transport.abort()
        else:
            self.flow.resume_reading()

    # The parser.

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            if self.parser.get_method() == b"CONNECT":
                self._refuse(400)  # we are no proxy
            else:
                self._feed_without_offer(data[error.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400)

    def _feed_without_offer(self, rest: bytes) -> None:
        """Parse the request again as if it did not offer another protocol: the parser stops after such a head.

        A server may ignore the offer: https://www.rfc-editor.org/rfc/rfc9110#section-7.8
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % field for field in map(_without_offer, self.headers) if field is not None]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as the one before it
        self._feed(b"\r\n".join([*lines, b"", rest]))

    # Heads.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._field_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, 408)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._field_bytes += len(name) + len(value)
        if len(self.headers) >= MAX_HEADERS or self._field_bytes > MAX_HEAD_BYTES:
            self._refuse(431)
            raise httptools.HttpParserError("too many headers, or too large ones")
        super().on_header(name, value.strip(b" \t"))  # https://www.rfc-editor.org/rfc/rfc9110#section-5.5

    def on_headers_complete(self) -> None:
        self._stop_head_timer()
        if self._is_refused or self.parser.should_upgrade():
            return
        n_hosts = sum(name == b"host" for name, _ in self.headers)
        if n_hosts > 1 or (n_hosts == 0 and self.parser.get_http_version() != "1.0"):
            # "A server MUST respond with a 400": https://www.rfc-editor.org/rfc/rfc9112#section-3.2
            self._refuse(400)
            raise httptools.HttpParserError("not one host")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # Refusals.

    def _refuse(self, status: int) -> None:
        """Answer what is no proper request, and close. In the midst of an answer only the closing is left."""
        if self._is_refused:
            return
        self._is_refused = True
        self._stop_head_timer()
        is_amid = self._answering is not None and self._is_answering and self._answering.response_started
        self._disconnect()
        if is_amid:
            self.transport.abort()
            return
        self.transport.write(_raw_refusal(status))
        self.transport.close()


def _ask_whether_it_is_there(connection: socket.socket) -> None:
    """Keep-alive probes; a client that answers them is waited for: https://www.rfc-editor.org/rfc/rfc9293#section-3.8.4"""
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
    refusal = refusal_for_status(status)
    body = error_body(refusal)
    more = ((b"connection", b"close"), (b"x-request-id", uuid4().hex.encode()))
    lines = [b"HTTP/1.1 %d %s" % (status, _REASONS[status])]
    lines += [b"%s: %s" % header for header in refusal_head(len(body), refusal, more).headers]
    return b"\r\n".join([*lines, b"", body])
