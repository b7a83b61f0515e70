"""Events, comments and JSON are encoded so that every reader splits them into the same lines and blocks."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.sse.decoder import EventDecoder
from sluiceway.sse.encoder import encode_comment, encode_event, encode_json, number_events
from sluiceway.sse.event import ServerEvent, SSEError

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


def test_event_with_only_data_has_one_line() -> None:
    assert encode_event("hello") == b"data: hello\n\n"


def test_event_with_all_fields_is_one_block_that_ends_with_the_data() -> None:
    """A comment in a block of its own would be an event for some readers of streams with ids."""
    raw = encode_event("x", event="delta", id="7", retry_ms=1000, comment="ka")
    assert raw == b": ka\nevent: delta\nid: 7\nretry: 1000\ndata: x\n\n"


@pytest.mark.parametrize("data", ["a\nb", "a\rb", "a\r\nb"])
def test_each_line_of_the_data_is_a_field(data: str) -> None:
    """A line end in the data would end the field."""
    assert encode_event(data) == b"data: a\ndata: b\n\n"


def test_an_empty_id_resets_the_id_of_the_reader() -> None:
    decoder = EventDecoder()
    assert [event.last_event_id for event in decoder.feed(encode_event("a", id="1") + encode_event("b", id=""))] == [
        "1",
        "",
    ]


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_an_event_name_with_a_line_end_is_refused(name: str) -> None:
    """A reader would take the rest of the name for a field."""
    with pytest.raises(SSEError, match="event name"):
        encode_event("x", event=name)


@pytest.mark.parametrize("event_id", ["a\nb", "a\rb", "a\0b"])
def test_an_id_with_a_line_end_or_nul_is_refused(event_id: str) -> None:
    """Readers ignore ids with NUL, and a line end would start another field."""
    with pytest.raises(SSEError, match="event id"):
        encode_event("x", id=event_id)


def test_a_negative_retry_time_is_refused() -> None:
    with pytest.raises(SSEError, match="-1"):
        encode_event("x", retry_ms=-1)


def test_comment_lines_do_not_change_the_event_after_them() -> None:
    """They keep the connection alive."""
    decoder = EventDecoder()
    line = encode_comment("ka", is_block=False)
    assert line == b": ka\n" and [*decoder.feed(line), *decoder.feed(line)] == []
    assert list(decoder.feed(encode_event("a", id="7"))) == [ServerEvent("a", last_event_id="7")]


def test_numbering_gives_each_event_an_id() -> None:
    """A block without data gets no id, so that no reader takes it for an event."""
    frames = encode_event("a") + encode_comment("ka") + encode_event("b\nc", event="token")
    assert number_events(frames, 7) == [
        b"id: 7\ndata: a\n\n",
        b": ka\n\n",
        b"id: 8\nevent: token\ndata: b\ndata: c\n\n",
    ]


def test_numbering_no_bytes_gives_no_events() -> None:
    """A framer returns no bytes for text that is held back."""
    assert number_events(b"", 1) == []


@settings(max_examples=50, derandomize=True)
@given(st.lists(TEXTS, max_size=5))
def test_numbered_events_of_any_text_are_read_with_their_ids(texts: list[str]) -> None:
    blocks = number_events(b"".join(map(encode_event, texts)), 1)
    read = list(EventDecoder().feed(b"".join(blocks)))
    assert len(blocks) == len(texts)
    assert [event.last_event_id for event in read] == [str(n) for n in range(1, len(texts) + 1)]


def test_comment_is_a_block_without_fields() -> None:
    """So a reader gets no event from it."""
    assert encode_comment() == b":\n\n"
    assert encode_comment("a\nb") == b": a\n: b\n\n"
    assert list(EventDecoder().feed(encode_comment("data: x\rdata: y"))) == []


def test_a_lone_surrogate_in_an_event_is_replaced() -> None:
    """It has no encoding in UTF-8, and must not break the stream."""
    assert encode_event("a\ud800") == b"data: a?\n\n"


@settings(max_examples=200, derandomize=True)
@given(data=TEXTS, event=NAMES, event_id=NAMES, retry_ms=st.integers(0, 10**15 - 1), comment=st.none() | TEXTS)
def test_any_event_is_decoded_as_it_was_encoded(
    data: str, event: str, event_id: str, retry_ms: int, comment: str | None
) -> None:
    """Only the kind of its line ends may differ."""
    decoder = EventDecoder()
    raw = encode_event(data, event=event, id=event_id, retry_ms=retry_ms, comment=comment)
    lines = data.replace("\r\n", "\n").replace("\r", "\n")
    assert list(decoder.feed(raw)) == [ServerEvent(lines, event or "message", event_id)]
    assert decoder.retry_ms == retry_ms


@settings(max_examples=200, derandomize=True)
@given(value=st.recursive(TEXTS | st.integers(-(2**63), 2**63) | st.booleans() | st.none(), st.lists, max_leaves=8))
def test_json_is_one_line_for_every_line_splitter(value: object) -> None:
    """Python's `splitlines` splits at ten different characters. Encoded JSON has none of them."""
    raw = encode_json(value)
    assert len(raw.decode().splitlines()) == 1
    assert json.loads(raw) == value


def test_json_escapes_rare_line_ends() -> None:
    """U+2028, U+2029 and U+0085 are legal in JSON, but some line splitters split at them."""
    assert encode_json("\u2028\u2029\x85\v\f") == rb'"\u2028\u2029\u0085\u000b\f"'


def test_json_does_not_escape_other_characters() -> None:
    """Escaped, this character would have six bytes instead of three."""
    assert encode_json("日") == '"日"'.encode()


def test_json_replaces_lone_surrogates() -> None:
    """They have no encoding in UTF-8. Two surrogates that form a pair are one character."""
    assert encode_json({"a": "x\ud800y\ud83d\ude00"}) == '{"a":"x\ufffdy😀"}'.encode()
