"""The decoder follows the rules of the standard, however the stream is split, and survives any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.sse.decoder import EventDecoder
from sluiceway.sse.event import ServerEvent, SSEError


def decode(*reads: bytes) -> list[ServerEvent]:
    """All events of a stream that comes in these reads."""
    decoder = EventDecoder()
    return [event for read in reads for event in decoder.feed(read)]


def data_of(raw: bytes) -> list[str]:
    return [event.data for event in decode(raw)]


# Examples of https://html.spec.whatwg.org/multipage/server-sent-events.html
STANDARD = [
    (b"data: This is the first message.\n\ndata: This is the second message, it\ndata: has two lines.\n\n", 2),
    (b"event: add\ndata: 73857293\n\nevent: remove\ndata: 2153\n\nevent: add\ndata: 113411\n\n", 3),
    (b"data: YHOO\ndata: +2\ndata: 10\n\n", 1),
    (b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n", 3),
    (b"data\n\ndata\ndata\n\ndata:", 2),
    (b"data:test\n\ndata: test\n\n", 2),
]

TRICKY = b"".join(
    (
        b"\xef\xbb\xbfdata: bom\r\n\r\n",
        "id: 1\rdata: é😀\u2028\r\r".encode(),
        b"event: x\ndata: a\r\ndata\ndata: b\n\n",
        b": comment\nretry: 15\n\n",
        b"data: bad \xff\xe2\x80 bytes\n\r\n",
        b"id\ndata:  two spaces\n\n",
        b"data: unfinished",
    )
)


def test_first_example_of_the_standard_has_two_messages() -> None:
    """The second message has two lines."""
    assert data_of(STANDARD[0][0]) == [
        "This is the first message.",
        "This is the second message, it\nhas two lines.",
    ]


def test_second_example_of_the_standard_has_named_events() -> None:
    """A name is valid for one event only."""
    assert [(event.event, event.data) for event in decode(STANDARD[1][0])] == [
        ("add", "73857293"),
        ("remove", "2153"),
        ("add", "113411"),
    ]


def test_third_example_of_the_standard_is_one_event_of_three_lines() -> None:
    assert data_of(STANDARD[2][0]) == ["YHOO\n+2\n10"]


def test_fourth_example_of_the_standard_sets_and_resets_the_id() -> None:
    """An id without a value resets it. A second space after the colon is part of the data."""
    assert [(event.data, event.last_event_id) for event in decode(STANDARD[3][0])] == [
        ("first event", "1"),
        ("second event", ""),
        (" third event", ""),
    ]


def test_fifth_example_of_the_standard_has_two_events_and_an_unfinished_block() -> None:
    """Events with empty data count; a block without a blank line at its end does not."""
    assert data_of(STANDARD[4][0]) == ["", "\n"]


def test_sixth_example_of_the_standard_has_two_equal_events() -> None:
    """One space after the colon is not part of the value."""
    first, second = decode(STANDARD[5][0])
    assert first == second == ServerEvent("test")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data: a\r\r", ["a"]),
        (b"data: a\r\n\r\n", ["a"]),
        (b"data: a\r\n\n", ["a"]),
        (b"data: a\n\r", ["a"]),
        ("data: a\u2028b\u2029c\x85d\n\n".encode(), ["a\u2028b\u2029c\x85d"]),
        (b"data: a\x0bb\x0cc\n\n", ["a\x0bb\x0cc"]),
        (b"data: a\n: comment\ndata: b\n\n", ["a\nb"]),
        (b"data:\ta\n\n", ["\ta"]),
        (b"data:  a \n\n", [" a "]),
        (b"data: a:b\n\n", ["a:b"]),
        (b"Data: a\n\n", []),
        (b" data: a\n\n", []),
        (b"data : a\n\n", []),
        (b"other: a\n\n", []),
        (b"data:\n\n", [""]),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n", []),
        (b"\ndata: \xef\xbb\xbfa\n\n", ["\ufeffa"]),
        (b"data: \xff\n\n", ["\ufffd"]),
        (b"data: \xf0\x9f\n\n", ["\ufffd"]),
        (b"\n\n\n", []),
        (b"data: a\n", []),
    ],
)
def test_data_of_unusual_streams_follows_the_standard(raw: bytes, expected: list[str]) -> None:
    """Each row tests one rule."""
    assert data_of(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"event: a\nevent: b\ndata: x\n\n", ["b"]),
        (b"event: a\nevent:\ndata: x\n\n", ["message"]),
        (b"event: a\n\ndata: x\n\n", ["message"]),
    ],
)
def test_name_of_an_event_is_the_last_one_of_its_block(raw: bytes, expected: list[str]) -> None:
    """An empty name means `message`. A blank line resets the name, even without data before it."""
    assert [event.event for event in decode(raw)] == expected


def test_id_stays_valid_for_later_events_without_an_id() -> None:
    """The id belongs to the stream, not to an event. An id with NUL is ignored."""
    events = decode(b"id: 1\ndata: a\n\ndata: b\n\nid: 2\0\ndata: c\n\nid: 3\n\ndata: d\n\n")
    assert [event.last_event_id for event in events] == ["1", "1", "1", "3"]


def test_id_of_an_unfinished_block_is_not_used() -> None:
    """When a client reconnects, it sends the id of the last complete block."""
    decoder = EventDecoder()
    list(decoder.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n"))
    assert decoder.last_event_id == "1"
    list(decoder.feed(b"\n"))
    assert decoder.last_event_id == "2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1000", 1000),
        (b"0", 0),
        (b"007", 7),
        (b"", None),
        (b"-1", None),
        (b"1.5", None),
        (b"1 ", None),
        ("١".encode(), None),
        ("²".encode(), None),
        (b"9" * 15, 10**15 - 1),
        (b"9" * 16, None),
        (b"9" * 5000, None),
    ],
)
def test_retry_must_have_only_ascii_digits(value: bytes, expected: int | None) -> None:
    """At most 15 of them."""
    decoder = EventDecoder()
    assert list(decoder.feed(b"retry: " + value + b"\n\n")) == []
    assert decoder.retry_ms == expected


@pytest.mark.parametrize("raw", [*(raw for raw, _ in STANDARD), TRICKY])
def test_events_are_the_same_wherever_the_stream_is_split(raw: bytes) -> None:
    """At every byte, so also inside a character, a CRLF or a field name; and byte by byte, with empty reads between."""
    whole = decode(raw)
    for at in range(len(raw) + 1):
        assert decode(raw[:at], raw[at:]) == whole, f"split at byte {at}"
    assert decode(*(part for i in range(len(raw)) for part in (raw[i : i + 1], b""))) == whole


@pytest.mark.parametrize(("raw", "n_events"), STANDARD)
def test_examples_have_as_many_events_as_the_standard_says(raw: bytes, n_events: int) -> None:
    assert len(decode(raw)) == n_events


@pytest.mark.parametrize("raw", [b"data: " + b"x" * 11, b"data: " + b"x" * 11 + b"\n", b": " + b"x" * 15])
def test_a_line_over_its_limit_is_an_error(raw: bytes) -> None:
    """Even if the line has not ended yet."""
    with pytest.raises(SSEError, match="longer than 16 bytes"):
        list(EventDecoder(max_line_bytes=16).feed(raw))


def test_a_line_over_its_limit_in_many_reads_is_an_error() -> None:
    decoder = EventDecoder(max_line_bytes=16)
    for _ in range(16):
        assert list(decoder.feed(b"x")) == []
    with pytest.raises(SSEError, match="line"):
        list(decoder.feed(b"x"))


def test_an_event_over_its_limit_is_an_error_after_the_events_before_it() -> None:
    """Many short lines make a long event. Earlier events are still returned."""
    events: list[ServerEvent] = []
    with pytest.raises(SSEError, match="event of the stream is longer than 20 bytes"):
        events.extend(EventDecoder(max_event_bytes=20).feed(b"data: a\n\n" + b"data: b\n" * 3 + b"\n"))
    assert [event.data for event in events] == ["a"]


def test_the_limit_of_an_event_does_not_limit_the_stream() -> None:
    assert len(list(EventDecoder(max_event_bytes=20).feed(b"data: a\n\n" * 1000))) == 1000


PIECES = st.sampled_from(
    [
        b"data",
        b"id",
        b"event",
        b"retry",
        b":",
        b" ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"\0",
        b"x",
        b"7",
        b"\xf0\x9f",
    ]
)


@settings(max_examples=300, derandomize=True)
@given(pieces=st.lists(PIECES | st.binary(max_size=4), max_size=40), cuts=st.lists(st.integers(0, 160), max_size=6))
def test_any_bytes_are_decoded_or_raise_an_error(pieces: list[bytes], cuts: list[int]) -> None:
    """However they are split, the events and the end are the same. No other exception is raised."""
    raw = b"".join(pieces)
    edges = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    reads = [raw[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert _outcome([raw]) == _outcome(reads)


def _outcome(reads: list[bytes]) -> tuple[list[ServerEvent], bool]:
    decoder = EventDecoder(max_line_bytes=24, max_event_bytes=32)
    events: list[ServerEvent] = []
    try:
        for read in reads:
            events.extend(decoder.feed(read))
    except SSEError:
        return events, False
    return events, True
