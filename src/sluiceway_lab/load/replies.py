"""Parses HTTP answers with h11. Every piece of a body keeps the time at which it arrived.

While a server is measured, the client only stores what it reads, with times. Parsing comes afterwards, because client
and server may share a processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h11
import msgspec

from sluiceway.errors import SluicewayError

Read = tuple[float, bytes]
"""What one read from a socket returned, and when, in seconds of a monotonic clock."""

_MAX_HEAD_BYTES = 1 << 20


class LoadError(SluicewayError):
    """A measured server cannot be reached, refuses a request, breaks off an answer, or does not end it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything that was read from one connection, from just before it was opened to its end."""

    started_s: float
    reads: Sequence[Read]
    ended_s: float

    @property
    def n_bytes(self) -> int:
        return sum(len(raw) for _, raw in self.reads)


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer. Header names are in lower case.

    In a chunked body each chunk is a piece, with the time of its last byte. Otherwise each read is a piece.
    """

    status: int
    headers: dict[str, str]
    pieces: list[Read]
    is_whole: bool
    """True if the framing says that the body is complete."""

    @property
    def body(self) -> bytes:
        return b"".join(raw for _, raw in self.pieces)


class ReplyParser:
    """Reads one HTTP answer, in pieces of any size.

    Raises `LoadError` if the bytes are not an HTTP answer. The last, incomplete chunk of a broken answer is dropped.
    """

    def __init__(self) -> None:
        # h11 accepts an answer only after a request.
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._http.send(h11.Request(method="GET", target="/", headers=[("Host", "-")]))
        self._http.send(h11.EndOfMessage())
        self._head: h11.Response | None = None
        self._pieces: list[Read] = []
        self._chunk = bytearray()
        self.is_whole = False

    def feed(self, at_s: float, raw: bytes) -> None:
        """Take bytes as they arrive; empty ones when the server has closed the connection."""
        if not raw and self._head is None:
            return
        try:
            self._http.receive_data(raw)
            while not self.is_whole and not isinstance(event := self._http.next_event(), type(h11.NEED_DATA)):
                self._take(event, at_s)
        except h11.RemoteProtocolError as fault:
            if raw:
                raise LoadError(f"this is no HTTP answer: {fault}") from None

    @property
    def rest(self) -> bytes:
        """What arrived after the end of the answer."""
        return self._http.trailing_data[0]

    def reply(self) -> Reply:
        """Return what has been read so far. Raises `LoadError` if that is less than the head."""
        if self._head is None:
            raise LoadError("the server closed the connection before its answer began")
        return Reply(self._head.status_code, self._headers, self._pieces, self.is_whole)

    def _take(self, event: object, at_s: float) -> None:
        match event:
            case h11.Response():
                self._head = event
            case h11.Data():
                self._chunk += event.data
                if event.chunk_end or not self._is_chunked:
                    self._pieces.append((at_s, bytes(self._chunk)))
                    self._chunk.clear()
            case h11.EndOfMessage():
                self.is_whole = True

    @property
    def _headers(self) -> dict[str, str]:
        assert self._head is not None
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._head.headers}

    @property
    def _is_chunked(self) -> bool:
        return "chunked" in self._headers.get("transfer-encoding", "")


def parse_reply(reads: Sequence[Read]) -> Reply:
    """Parse all that a connection brought until the server closed it. Raises `LoadError` if it is no HTTP answer.

    A body that was cut short is not an error; the reply is then not whole.
    """
    parser = ReplyParser()
    for at_s, raw in reads:
        parser.feed(at_s, raw)
    if not parser.is_whole:
        parser.feed(0.0, b"")
    return parser.reply()


def complaint(body: bytes) -> str:
    """Return the message of an error in any of the usual forms."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:200].decode(errors="replace").strip() or "no reason given"
    return message_of(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def message_of(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
