"""Parsing HTTP answers with times."""

from __future__ import annotations

import pytest

from sluiceway_lab.load.replies import LoadError, Read, Recording, parse_reply

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Odd:  a : b \r\n\r\n"
CHUNKED = HEAD + b"3\r\nabc\r\n" + b"A;note=1\r\n0123456789\r\n" + b"0\r\n\r\n"


def reads(*pieces: bytes) -> list[Read]:
    """The first piece arrives at 1.0, each other one a second later."""
    return [(float(second), piece) for second, piece in enumerate(pieces, 1)]


def test_chunks_are_taken_apart() -> None:
    reply = parse_reply(reads(CHUNKED))
    assert (reply.status, reply.body, reply.is_whole) == (200, b"abc0123456789", True)
    assert reply.headers == {"transfer-encoding": "chunked", "x-odd": "a : b"}


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_chunks_are_the_same_wherever_they_are_split(cut: int) -> None:
    reply = parse_reply(reads(CHUNKED[:cut], CHUNKED[cut:]))
    assert (reply.body, reply.is_whole) == (b"abc0123456789", True)
    ends = [CHUNKED.index(b"abc") + 3, CHUNKED.index(b"0123456789") + 10]
    assert [at_s for at_s, _ in reply.pieces] == [1.0 if end <= cut else 2.0 for end in ends]


def test_chunks_are_the_same_byte_by_byte() -> None:
    reply = parse_reply(reads(*(CHUNKED[i : i + 1] for i in range(len(CHUNKED)))))
    assert reply.pieces[0] == (float(CHUNKED.index(b"abc") + 3), b"abc")
    assert reply.body == b"abc0123456789"


@pytest.mark.parametrize("kept", [len(HEAD), len(HEAD) + 2, len(HEAD) + 5, len(CHUNKED) - 5])
def test_body_is_not_whole_when_chunks_are_missing(kept: int) -> None:
    reply = parse_reply(reads(CHUNKED[:kept]))
    assert not reply.is_whole and b"abc0123456789".startswith(reply.body)


def test_body_with_a_length_keeps_the_times_of_its_reads() -> None:
    head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n"
    reply = parse_reply(reads(head[:10], head[10:] + b"ab", b"cdef"))
    assert (reply.status, reply.pieces, reply.is_whole) == (404, [(2.0, b"ab"), (3.0, b"cdef")], True)
    assert not parse_reply(reads(head + b"ab")).is_whole


def test_body_without_a_length_ends_with_the_connection() -> None:
    reply = parse_reply(reads(b"HTTP/1.0 200 OK\r\n\r\nab", b"c"))
    assert (reply.body, reply.is_whole) == (b"abc", True)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "before its answer began"),
        (b"HTTP/1.1 200 OK\r\n", "before its answer began"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1 fine\r\n\r\n", "no HTTP answer"),
        (b"HTTP/1.1\r\n\r\n", "no HTTP answer"),
        (HEAD + b"xyz\r\nabc\r\n", "no HTTP answer"),
    ],
)
def test_answer_is_refused_when_it_is_none(raw: bytes, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        parse_reply(reads(raw))


def test_recording_counts_every_byte() -> None:
    assert Recording(0.0, reads(b"ab", b"cde"), 9.0).n_bytes == 5
