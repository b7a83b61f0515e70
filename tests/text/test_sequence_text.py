"""The text of one sequence: what is certain comes at once, and nothing comes after a stop string."""

from __future__ import annotations

from sluiceway.text.byte_tokenizer import EOS_ID, ByteTokenizer
from sluiceway.text.sequence_text import SequenceText
from sluiceway.text.stops import StopMatcher


def text_of(*stops: str, min_tokens: int = 0) -> SequenceText:
    return SequenceText(ByteTokenizer().detokenizer(), StopMatcher(stops), min_tokens)


def pushed(text: SequenceText, characters: str) -> str:
    """The text that these bytes make certain."""
    for byte in characters.encode():
        text.push(byte)
    return text.take()[0]


def test_text_comes_with_its_tokens() -> None:
    """What was taken does not come again."""
    text = text_of()
    text.push(104)
    text.push(105)
    assert text.take() == ("hi", (104, 105), ())
    assert text.take() == ("", (), ())
    assert text.n_tokens == 2


def test_token_that_ends_the_sequence_is_counted_and_not_shown() -> None:
    """Even one that has a text."""
    text = text_of()
    text.push(104)
    text.push(EOS_ID, is_text=False)
    text.push(105, is_text=False)
    assert text.take() == ("h", (104, EOS_ID, 105), ())


def test_text_ends_before_a_stop_string() -> None:
    """Its beginning is held back until it is clear; the end adds nothing."""
    text = text_of("STOP")
    assert pushed(text, "a ST") == "a "
    assert [text.push(byte) for byte in b"OP"] == [False, True]
    assert text.take()[0] == "" and text.is_over
    assert text.stop_match == "STOP"
    text.end()
    assert text.take() == ("", (), ())


def test_what_was_held_back_is_text_when_the_sequence_ends() -> None:
    """The beginning of a stop string that never came, half a character."""
    text = text_of("STOP")
    assert pushed(text, "a ST") == "a "
    text.push("é".encode()[0])
    assert text.take()[0] == ""
    text.end()
    assert text.take() == ("ST\ufffd", (), ())
    assert text.stop_match is None


def test_end_of_the_text_may_complete_a_stop_string() -> None:
    """Half a character becomes U+FFFD, and the one stop was pending behind a longer one."""
    text = text_of("a\ufffd")
    text.push(ord("a"))
    text.push("é".encode()[0])
    text.end()
    assert (text.take()[0], text.stop_match) == ("", "a\ufffd")
    pending = text_of("abcd", "bc")
    assert pushed(pending, "abc") == ""
    pending.end()
    assert (pending.take()[0], pending.stop_match) == ("a", "bc")


def test_stop_string_is_text_before_the_least_number_of_tokens() -> None:
    """It is looked for in what comes from that token on."""
    text = text_of("x", min_tokens=3)
    assert pushed(text, "axx") == "ax"
    assert (text.stop_match, text.n_tokens) == ("x", 3)
