"""Write server-sent events: one call gives the bytes of one whole block, ready for one write.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html. Readers force more rules on a writer:

* every block that carries `id`, `event` or `retry` carries data too: official SDKs hand the empty data of other blocks
  to their JSON parser and fail;
* a comment may stand inside an event's block; as a block of its own it is safe only in streams without ids, since some
  readers then dispatch an event with the old id and no data. There, its line opens the block of the next event;
* JSON has no U+2028, U+2029, U+0085, VT or FF in it: text is cut there by readers that use a general line splitter.
"""

from __future__ import annotations

import json
import re

import msgspec

from sluiceway.sse.event import SSEError

_LINE_END = re.compile(r"\r\n|\r|\n")
_NOT_IN_A_LINE = re.compile(r"[\r\n]")
_NOT_IN_AN_ID = re.compile(r"[\r\n\0]")

# The characters as UTF-8, and their escapes. VT and FF are control characters, which JSON escapes anyway.
_CUTTERS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))

_json_encoder = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    """JSON in UTF-8, compact, in one line that no reader cuts. A lone surrogate becomes U+FFFD: text never raises."""
    try:
        raw = _json_encoder.encode(value)
    except UnicodeEncodeError:
        raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-16", "surrogatepass")
        raw = raw.decode("utf-16", "replace").encode()
    if raw.isascii():
        return raw
    for cutter, escape in _CUTTERS:
        raw = raw.replace(cutter, escape)
    return raw


def encode_event(
    data: str,
    *,
    event: str | None = None,
    id: str | None = None,
    retry_ms: int | None = None,
    comment: str | None = None,
) -> bytes:
    """The block of one event. A reader gets `data` back with CR and CRLF turned into LF.

    Raises `SSEError` for an event name with a line end, an id with a line end or NUL, a negative retry.
    """
    lines = [] if comment is None else _comment_lines(comment)
    if event:
        if _NOT_IN_A_LINE.search(event):
            raise SSEError(f"an event name must be one line, not {event[:64]!r}")
        lines.append(f"event: {event}")
    if id is not None:
        if _NOT_IN_AN_ID.search(id):
            raise SSEError(f"an event id must be one line without NUL, not {id[:64]!r}")
        lines.append(f"id: {id}")
    if retry_ms is not None:
        if retry_ms < 0:
            raise SSEError(f"a reconnection time must be at least 0 ms, not {retry_ms}")
        lines.append(f"retry: {retry_ms}")
    lines.extend(f"data: {line}" for line in _LINE_END.split(data))
    return _block(lines)


def encode_comment(text: str = "", *, is_block: bool = True) -> bytes:
    """Says nothing to a program, and keeps a connection alive. As a block not for streams whose events carry ids.

    Without one it opens the block of the event that comes next.
    """
    lines = _comment_lines(text)
    return _block(lines) if is_block else _encode("\n".join([*lines, ""]))


def number_events(frames: bytes, first_id: int) -> list[bytes]:
    """Whole blocks (lines that end with LF), one by one, each that has data with the next `id` in it."""
    numbered = []
    for block in frames.split(b"\n\n")[:-1]:
        if block.startswith(b"data:") or b"\ndata:" in block:
            numbered.append(b"id: %d\n%b\n\n" % (first_id, block))
            first_id += 1
        else:
            numbered.append(block + b"\n\n")
    return numbered


def _comment_lines(text: str) -> list[str]:
    return [f": {line}" if line else ":" for line in _LINE_END.split(text)]


def _block(lines: list[str]) -> bytes:
    return _encode("\n".join(lines) + "\n\n")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")
