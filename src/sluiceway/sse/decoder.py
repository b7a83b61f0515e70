"""Read server-sent events: bytes in any split, events out, as the HTML standard says.

https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation, with two bounds added,
because a stream comes from outside: the bytes of one line, and the bytes of one event's data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sluiceway.sse.event import ServerEvent, SSEError

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_RETRY_DIGITS = 15
"""Longer reconnection times (thousands of years) are ignored, as other values that are no time."""


class EventDecoder:
    """The state between two reads. What is not closed by a blank line when the stream ends is thrown away.

    `last_event_id` is what a reconnecting client sends as `Last-Event-ID`; `retry_ms` is None until the stream sets it.
    """

    def __init__(self, *, max_line_bytes: int = 1 << 20, max_event_bytes: int = 4 << 20) -> None:
        self.last_event_id = ""
        self.retry_ms: int | None = None
        self._max_line_bytes = max_line_bytes
        self._max_event_bytes = max_event_bytes
        self._rest = bytearray()
        self._is_first_line = True
        self._skip_lf = False
        self._data: list[str] = []
        self._data_bytes = 0
        self._event = ""
        self._id = ""

    def feed(self, raw: bytes) -> Iterator[ServerEvent]:
        """The events that these bytes complete. Exhaust it before feeding again.

        Raises `SSEError`, after the events before the fault, when a bound is passed; then the stream is lost.
        """
        for line in self._lines(raw):
            if line:
                self._take_field(line.decode("utf-8", "replace"), len(line))
            else:
                yield from self._dispatch()

    def _lines(self, raw: bytes) -> Iterator[bytes]:
        # "A CRLF pair is one line end", also when a read ends between the two: the line is given out at the CR.
        if self._skip_lf and raw:
            raw = raw.removeprefix(b"\n")
            self._skip_lf = False
        self._skip_lf = self._skip_lf or raw.endswith(b"\r")
        *ended, rest = _LINE_END.split(raw)
        for piece in ended:
            yield self._close_line(piece)
        self._rest += rest
        self._check_line(len(self._rest))

    def _close_line(self, piece: bytes) -> bytes:
        line = bytes(self._rest) + piece
        self._check_line(len(line))
        self._rest.clear()
        if self._is_first_line:
            self._is_first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return line

    def _check_line(self, n_bytes: int) -> None:
        if n_bytes > self._max_line_bytes:
            raise SSEError(f"a line of the event stream is longer than {self._max_line_bytes} bytes")

    def _take_field(self, line: str, n_bytes: int) -> None:
        name, _, value = line.partition(":")  # a comment has the empty name, which is no field
        value = value.removeprefix(" ")
        if name == "data":
            self._data_bytes += n_bytes
            if self._data_bytes > self._max_event_bytes:
                raise SSEError(f"an event of the stream is longer than {self._max_event_bytes} bytes")
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self._take_retry(value.lstrip("0") or "0")

    def _take_retry(self, digits: str) -> None:
        if len(digits) <= _MAX_RETRY_DIGITS:
            self.retry_ms = int(digits)

    def _dispatch(self) -> Iterator[ServerEvent]:
        data, event = self._data, self._event
        self._data, self._data_bytes, self._event = [], 0, ""
        self.last_event_id = self._id
        if data:
            yield ServerEvent("\n".join(data), event or "message", self.last_event_id)
