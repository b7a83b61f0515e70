"""One HTTP answer, read after it is over: bytes with their times in, status, headers and the timed body out.

While a server is measured the client only notes what arrives and when: the two may share a processor.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from sluiceway.errors import SluicewayError

Read = tuple[float, bytes]
"""When it arrived, in seconds of a clock that only goes forward, and what."""

_LINE_END = b"\r\n"
_HEAD_END = b"\r\n\r\n"


class LoadError(SluicewayError):
    """A server that is measured cannot be reached, refuses, breaks off, or does not come to an end."""


@dataclass(frozen=True, slots=True)
class Recording:
    """All that one connection brought, from just before it was opened to its end."""

    started_s: float
    reads: Sequence[Read]
    ended_s: float

    @property
    def n_bytes(self) -> int:
        return sum(len(raw) for _, raw in self.reads)


@dataclass(frozen=True, slots=True)
class Reply:
    """Header names are in lower case. A piece of the body has the time at which it was complete."""

    status: int
    headers: dict[str, str]
    pieces: list[Read]
    is_whole: bool
    """Whether the framing says that nothing is missing."""

    @property
    def body(self) -> bytes:
        return b"".join(raw for _, raw in self.pieces)


def parse_reply(reads: Sequence[Read]) -> Reply:
    """Raises `LoadError` where this is no HTTP answer. A body that is cut short is no error, but not whole."""
    raw = b"".join(piece for _, piece in reads)
    head, head_end, _ = raw.partition(_HEAD_END)
    if not head_end:
        raise LoadError("the server closed the connection before its answer began")
    status, headers = _parse_head(head)
    body_start = len(head) + len(_HEAD_END)
    if "chunked" in headers.get("transfer-encoding", ""):
        pieces = list(_chunks(raw, body_start, _Times(reads)))
        is_whole = bool(pieces) and not pieces[-1][1]
        return Reply(status, headers, [piece for piece in pieces if piece[1]], is_whole)
    pieces = list(_after(reads, body_start))
    n_bytes = len(raw) - body_start
    return Reply(status, headers, pieces, n_bytes == int(headers.get("content-length", n_bytes)))


class _Times:
    """When the byte before a position had arrived."""

    def __init__(self, reads: Sequence[Read]) -> None:
        self._ends = list(accumulate(len(raw) for _, raw in reads))
        self._reads = reads

    def of(self, position: int) -> float:
        return self._reads[bisect_left(self._ends, position)][0]


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split()
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise LoadError(f"this is no HTTP answer: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


def _chunks(raw: bytes, position: int, times: _Times) -> Iterator[Read]:
    """Every complete chunk; the last one, of length zero, too. https://www.rfc-editor.org/rfc/rfc9112#section-7.1"""
    while (line_end := raw.find(_LINE_END, position)) >= 0:
        start = line_end + len(_LINE_END)
        end = start + _chunk_size(raw[position:line_end])
        if end > len(raw):
            return
        yield times.of(end), raw[start:end]
        if end == start:
            return
        position = end + len(_LINE_END)


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    try:
        return int(digits, 16)
    except ValueError:
        raise LoadError(f"this is no length of a chunk: {digits[:20]!r}") from None


def _after(reads: Sequence[Read], position: int) -> Iterator[Read]:
    for at_s, raw in reads:
        if len(raw) > position:
            yield at_s, raw[position:]
        position = max(0, position - len(raw))
