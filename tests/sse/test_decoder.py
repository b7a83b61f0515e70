"""The decoder against the rules of the standard, in every split, and against garbage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.sse.decoder import EventDecoder
from sluiceway.sse.event import ServerEvent, SSEError


def decode(*reads: bytes) -> list[ServerEvent]:
    """All events of a stream that arrives in these reads."""
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


def test_standard_first_example_gives_its_messages_when_decoded() -> None:
    """Two messages, the second of two lines."""
    assert data_of(STANDARD[0][0]) == [
        "This is the first message.",
        "This is the second message, it\nhas two lines.",
    ]


def test_standard_second_example_gives_its_names_when_decoded() -> None:
    """The event name holds for one event."""
    assert [(event.event, event.data) for event in decode(STANDARD[1][0])] == [
        ("add", "73857293"),
        ("remove", "2153"),
        ("add", "113411"),
    ]


def test_standard_third_example_joins_its_lines_when_decoded() -> None:
    """Three lines, two line ends."""
    assert data_of(STANDARD[2][0]) == ["YHOO\n+2\n10"]


def test_standard_fourth_example_keeps_and_resets_the_id_when_decoded() -> None:
    """A comment, an id, an id without value, and a second space that belongs to the data."""
    assert [(event.data, event.last_event_id) for event in decode(STANDARD[3][0])] == [
        ("first event", "1"),
        ("second event", ""),
        (" third event", ""),
    ]


def test_standard_fifth_example_throws_the_last_block_away_when_it_is_not_closed() -> None:
    """Empty data is data; an unfinished block is none."""
    assert data_of(STANDARD[4][0]) == ["", "\n"]


def test_standard_sixth_example_gives_equal_events_when_the_space_is_left_out() -> None:
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
def test_data_follows_the_rules_when_the_stream_is_odd(raw: bytes, expected: list[str]) -> None:
    """One rule of the standard a row."""
    assert data_of(raw) == expected


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"event: a\nevent: b\ndata: x\n\n", ["b"]),
        (b"event: a\nevent:\ndata: x\n\n", ["message"]),
        (b"event: a\n\ndata: x\n\n", ["message"]),
    ],
)
def test_name_follows_the_rules_when_it_is_given_and_taken_back(raw: bytes, expected: list[str]) -> None:
    """The last one wins, empty means message, and a blank line forgets it, also without data."""
    assert [event.event for event in decode(raw)] == expected


def test_id_lasts_when_later_events_have_none() -> None:
    """The id is the stream's, not the event's; one with NUL is ignored entirely."""
    events = decode(b"id: 1\ndata: a\n\ndata: b\n\nid: 2\0\ndata: c\n\nid: 3\n\ndata: d\n\n")
    assert [event.last_event_id for event in events] == ["1", "1", "1", "3"]


def test_last_id_is_kept_when_its_block_is_not_closed() -> None:
    """What a client sends when it reconnects is the id of the last whole block."""
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
def test_retry_is_taken_when_it_is_a_time(value: bytes, expected: int | None) -> None:
    """ASCII digits alone."""
    decoder = EventDecoder()
    assert list(decoder.feed(b"retry: " + value + b"\n\n")) == []
    assert decoder.retry_ms == expected


@pytest.mark.parametrize("raw", [*(raw for raw, _ in STANDARD), TRICKY])
def test_events_are_the_same_when_the_stream_is_split_anywhere(raw: bytes) -> None:
    """In a character, in a CRLF, in a field name; and byte by byte, with empty reads between."""
    whole = decode(raw)
    for at in range(len(raw) + 1):
        assert decode(raw[:at], raw[at:]) == whole, f"split at byte {at}"
    assert decode(*(part for i in range(len(raw)) for part in (raw[i : i + 1], b""))) == whole


@pytest.mark.parametrize(("raw", "n_events"), STANDARD)
def test_standard_examples_give_their_number_of_events_when_decoded(raw: bytes, n_events: int) -> None:
    """As the standard counts them."""
    assert len(decode(raw)) == n_events


@pytest.mark.parametrize("raw", [b"data: " + b"x" * 11, b"data: " + b"x" * 11 + b"\n", b": " + b"x" * 15])
def test_decoder_fails_when_a_line_passes_its_bound(raw: bytes) -> None:
    """Also a line that never ends, as soon as it is too long."""
    with pytest.raises(SSEError, match="longer than 16 bytes"):
        list(EventDecoder(max_line_bytes=16).feed(raw))


def test_decoder_fails_when_a_line_passes_its_bound_over_many_reads() -> None:
    """The bound is of the line, not of the read."""
    decoder = EventDecoder(max_line_bytes=16)
    for _ in range(16):
        assert list(decoder.feed(b"x")) == []
    with pytest.raises(SSEError, match="line"):
        list(decoder.feed(b"x"))


def test_decoder_fails_after_the_events_before_when_an_event_passes_its_bound() -> None:
    """Many short lines make a long event; what came before it is not lost."""
    events: list[ServerEvent] = []
    with pytest.raises(SSEError, match="event of the stream is longer than 20 bytes"):
        events.extend(EventDecoder(max_event_bytes=20).feed(b"data: a\n\n" + b"data: b\n" * 3 + b"\n"))
    assert [event.data for event in events] == ["a"]


def test_decoder_counts_each_event_alone_when_there_are_many() -> None:
    """The bound is of one event, not of the stream."""
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
def test_garbage_gives_events_or_an_error_when_decoded(pieces: list[bytes], cuts: list[int]) -> None:
    """Any bytes in any split: the same events before the same end, and no other exception."""
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
