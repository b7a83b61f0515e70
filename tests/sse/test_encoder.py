"""Blocks as readers need them: whole, with data, in lines that nobody cuts."""

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


def test_event_is_one_block_when_it_has_data_alone() -> None:
    """The common case."""
    assert encode_event("hello") == b"data: hello\n\n"


def test_event_has_its_fields_before_its_data_when_all_are_given() -> None:
    """One block, whatever it carries: a comment of its own would be an event to some readers of streams with ids."""
    raw = encode_event("x", event="delta", id="7", retry_ms=1000, comment="ka")
    assert raw == b": ka\nevent: delta\nid: 7\nretry: 1000\ndata: x\n\n"


@pytest.mark.parametrize("data", ["a\nb", "a\rb", "a\r\nb"])
def test_event_has_a_data_line_per_line_when_data_has_line_ends(data: str) -> None:
    """A raw line end would end the field."""
    assert encode_event(data) == b"data: a\ndata: b\n\n"


def test_event_resets_the_id_when_the_id_is_empty() -> None:
    """An empty id is a value of its own: it makes the reader forget the last one."""
    decoder = EventDecoder()
    assert [event.last_event_id for event in decoder.feed(encode_event("a", id="1") + encode_event("b", id=""))] == [
        "1",
        "",
    ]


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_event_is_refused_when_the_name_is_more_than_a_line(name: str) -> None:
    """The rest of the name would be read as a field."""
    with pytest.raises(SSEError, match="event name"):
        encode_event("x", event=name)


@pytest.mark.parametrize("event_id", ["a\nb", "a\rb", "a\0b"])
def test_event_is_refused_when_the_id_cannot_be_read_back(event_id: str) -> None:
    """Readers ignore ids with NUL; line ends would start another field."""
    with pytest.raises(SSEError, match="event id"):
        encode_event("x", id=event_id)


def test_event_is_refused_when_the_retry_is_negative() -> None:
    """Only digits are a time."""
    with pytest.raises(SSEError, match="-1"):
        encode_event("x", retry_ms=-1)


def test_event_is_read_as_it_was_when_a_comment_line_came_before_it() -> None:
    """The line keeps the connection alive, and begins no block of its own."""
    decoder = EventDecoder()
    line = encode_comment("ka", is_block=False)
    assert line == b": ka\n" and [*decoder.feed(line), *decoder.feed(line)] == []
    assert list(decoder.feed(encode_event("a", id="7"))) == [ServerEvent("a", last_event_id="7")]


def test_each_event_gets_its_id_when_numbered() -> None:
    """Also one with a name; a block without data gets none, so that no reader takes it for an event."""
    frames = encode_event("a") + encode_comment("ka") + encode_event("b\nc", event="token")
    assert number_events(frames, 7) == [
        b"id: 7\ndata: a\n\n",
        b": ka\n\n",
        b"id: 8\nevent: token\ndata: b\ndata: c\n\n",
    ]


def test_nothing_is_numbered_when_nothing_is_framed() -> None:
    """Text that is held back makes no event."""
    assert number_events(b"", 1) == []


@settings(max_examples=50, derandomize=True)
@given(st.lists(TEXTS, max_size=5))
def test_events_are_read_with_their_ids_when_numbered(texts: list[str]) -> None:
    """Whatever their data, and as many as there were."""
    blocks = number_events(b"".join(map(encode_event, texts)), 1)
    read = list(EventDecoder().feed(b"".join(blocks)))
    assert len(blocks) == len(texts)
    assert [event.last_event_id for event in read] == [str(n) for n in range(1, len(texts) + 1)]


def test_comment_is_a_block_without_fields_when_encoded() -> None:
    """Keep-alives say nothing."""
    assert encode_comment() == b":\n\n"
    assert encode_comment("a\nb") == b": a\n: b\n\n"
    assert list(EventDecoder().feed(encode_comment("data: x\rdata: y"))) == []


def test_event_is_written_when_the_text_has_a_lone_surrogate() -> None:
    """Half a character never breaks the stream of the whole ones."""
    assert encode_event("a\ud800") == b"data: a?\n\n"


@settings(max_examples=200, derandomize=True)
@given(data=TEXTS, event=NAMES, event_id=NAMES, retry_ms=st.integers(0, 10**15 - 1), comment=st.none() | TEXTS)
def test_event_comes_back_when_decoded(
    data: str, event: str, event_id: str, retry_ms: int, comment: str | None
) -> None:
    """Round trip: all that an event carries, but for the kind of its line ends."""
    decoder = EventDecoder()
    raw = encode_event(data, event=event, id=event_id, retry_ms=retry_ms, comment=comment)
    lines = data.replace("\r\n", "\n").replace("\r", "\n")
    assert list(decoder.feed(raw)) == [ServerEvent(lines, event or "message", event_id)]
    assert decoder.retry_ms == retry_ms


@settings(max_examples=200, derandomize=True)
@given(value=st.recursive(TEXTS | st.integers(-(2**63), 2**63) | st.booleans() | st.none(), st.lists, max_leaves=8))
def test_json_is_one_line_for_every_splitter_when_encoded(value: object) -> None:
    """Python's splitlines cuts at ten characters; JSON of ours has none of them."""
    raw = encode_json(value)
    assert len(raw.decode().splitlines()) == 1
    assert json.loads(raw) == value


def test_json_escapes_the_rare_line_ends_when_text_has_them() -> None:
    """U+2028, U+2029 and U+0085 are legal in JSON, and cut by general line splitters."""
    assert encode_json("\u2028\u2029\x85\v\f") == rb'"\u2028\u2029\u0085\u000b\f"'


def test_json_keeps_other_characters_raw_when_text_has_them() -> None:
    """Three bytes for a character, not six."""
    assert encode_json("日") == '"日"'.encode()


def test_json_replaces_half_characters_when_text_has_them() -> None:
    """A lone surrogate has no UTF-8; a pair of them, written apart, is a character."""
    assert encode_json({"a": "x\ud800y\ud83d\ude00"}) == '{"a":"x\ufffdy😀"}'.encode()
