"""The text of one sequence: certain text comes immediately, and nothing comes after a stop string."""

from __future__ import annotations

from sluiceway.tokenizer.text.byte_tokenizer import EOS_ID, ByteTokenizer
from sluiceway.tokenizer.text.sequence_text import SequenceText
from sluiceway.tokenizer.text.stops import StopMatcher
from sluiceway.types import LikelyToken, Logprobs


def text_of(*stops: str, min_tokens: int = 0) -> SequenceText:
    return SequenceText(ByteTokenizer().detokenizer(), StopMatcher(stops), min_tokens)


def pushed(text: SequenceText, characters: str) -> str:
    """Push the bytes and return the text that is certain."""
    for byte in characters.encode():
        text.push(byte)
    return text.take()[0]


def test_text_comes_with_its_tokens() -> None:
    """`take` returns everything once."""
    text = text_of()
    text.push(104)
    text.push(105)
    assert text.take() == ("hi", (104, 105), ())
    assert text.take() == ("", (), ())
    assert text.n_tokens == 2


def test_token_that_ends_the_sequence_is_counted_but_adds_no_text() -> None:
    text = text_of()
    text.push(104)
    text.push(EOS_ID, is_text=False)
    text.push(105, is_text=False)
    assert text.take() == ("h", (104, EOS_ID, 105), ())


def test_text_ends_before_a_stop_string() -> None:
    """Its beginning is held back until it is complete. `end` adds nothing."""
    text = text_of("STOP")
    assert pushed(text, "a ST") == "a "
    assert [text.push(byte) for byte in b"OP"] == [False, True]
    assert text.take()[0] == "" and text.is_over
    assert text.stop_match == "STOP"
    text.end()
    assert text.take() == ("", (), ())


def test_held_text_is_released_when_the_sequence_finishes() -> None:
    """The beginning of a stop string, or half a character."""
    text = text_of("STOP")
    assert pushed(text, "a ST") == "a "
    text.push("é".encode()[0])
    assert text.take()[0] == ""
    text.end()
    assert text.take() == ("ST\ufffd", (), ())
    assert text.stop_match is None


def test_end_of_the_text_may_complete_a_stop_string() -> None:
    """Half a character becomes U+FFFD, and one stop was pending because of a longer one."""
    text = text_of("a\ufffd")
    text.push(ord("a"))
    text.push("é".encode()[0])
    text.end()
    assert (text.take()[0], text.stop_match) == ("", "a\ufffd")
    pending = text_of("abcd", "bc")
    assert pushed(pending, "abc") == ""
    pending.end()
    assert (pending.take()[0], pending.stop_match) == ("a", "bc")


def test_stop_string_before_min_tokens_is_text() -> None:
    """Stop strings are searched only in text from that token on."""
    text = text_of("x", min_tokens=3)
    assert pushed(text, "axx") == "ax"
    assert (text.stop_match, text.n_tokens) == ("x", 3)


def logprobs_of(text: SequenceText, data: bytes) -> list[tuple[bytes, int, int | None]]:
    """Push each byte as a token with logprobs, and return the logprobs."""
    for byte in data:
        text.push(byte, Logprobs(-0.5, (), ()))
    return [(one.token.data, one.text_start, one.text_end) for one in text.take()[2]]


def test_logprobs_have_the_place_of_the_token_in_the_text() -> None:
    """Tokens of one character begin where it begins, and end where it ends."""
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert logprobs_of(text_of(), "aéb".encode()) == [(b"a", 0, 1), (first, 1, 2), (second, 1, 2), (b"b", 2, 3)]


def test_logprobs_come_immediately_though_the_text_is_held_back() -> None:
    """The text may come with a later token, or never."""
    text = text_of("STOP")
    assert logprobs_of(text, b"aST") == [(b"a", 0, 1), (b"S", 1, 2), (b"T", 2, 3)]
    assert logprobs_of(text, b"OP") == [(b"O", 3, 4), (b"P", 4, 5)]
    assert text.is_over


def test_logprobs_of_a_token_without_text_have_no_end() -> None:
    """Such a token ends the answer."""
    text = text_of()
    text.push(104, Logprobs(-0.5, (), ()))
    assert not text.push(105, Logprobs(-1.5, (), ()), is_text=False)
    logprobs = text.take()[2]
    assert [(one.token.token_id, one.token.logprob, one.text_end) for one in logprobs] == [
        (104, -0.5, 1),
        (105, -1.5, None),
    ]


def test_the_likeliest_tokens_keep_their_order() -> None:
    """Special tokens are shown by name and have no bytes."""
    text = text_of()
    text.push(104, Logprobs(-0.5, (104, EOS_ID, 0xC3), (-0.5, -1.0, -2.0)))
    (one,) = text.take()[2]
    assert one.top == (
        LikelyToken(104, "h", b"h", -0.5),
        LikelyToken(EOS_ID, "<eos>", b"", -1.0),
        LikelyToken(0xC3, "\\xc3", b"\xc3", -2.0),
    )
    assert text.take()[2] == ()


def test_there_are_no_logprobs_if_none_are_pushed() -> None:
    text = text_of()
    text.push(104)
    assert text.take() == ("h", (104,), ())


def test_logprobs_have_the_bytes_of_a_cut_character() -> None:
    """Its text is U+FFFD: only then are the joined bytes not the text."""
    text = text_of()
    for byte in "a🦆".encode()[:3]:
        text.push(byte, Logprobs(-1.0, (), ()))
    logprobs = text.take()[2]
    text.end()
    assert text.take()[0] == "\ufffd"
    assert b"".join(one.token.data for one in logprobs) == b"a\xf0\x9f"
