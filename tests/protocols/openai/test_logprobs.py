"""What is told of tokens: with the text that they are part of, all of it, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat.chat_completion import ChoiceLogprobs
from openai.types.completion_choice import Logprobs

from sluiceway.protocols.openai.logprobs import PendingLogprobs, chat_logprobs, completion_logprobs
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.text.detokenizer import Detokenizer, TokenBytes
from sluiceway.tokenizer.text.sequence_text import SequenceText
from sluiceway.tokenizer.text.stops import StopMatcher
from sluiceway.types import Logprobs as OfToken
from sluiceway.types import TokenLogprobs
from support.told import likely, told, told_text


def data_of(tokens: list[TokenLogprobs]) -> bytes:
    return b"".join(one.token.data for one in tokens)


def test_token_comes_with_its_text() -> None:
    """Not before all of it is out."""
    text = PendingLogprobs()
    one, two = told(b"one", 0, 3), told(b" two", 3, 7)
    text.add((one, two))
    assert text.take("on") == []
    assert text.take("e") == [one]
    assert text.take(" tw") == []
    assert text.take_last("o") == [two]


def test_tokens_of_one_character_come_together() -> None:
    """Each begins where it does."""
    halves = [told("é".encode()[:1], 0, 1), told("é".encode()[1:], 0, 1)]
    text = PendingLogprobs(halves)
    assert text.take("") == []
    assert text.take("é") == halves
    assert text.take_last("") == []


def test_token_without_text_comes_with_the_text_before_it() -> None:
    """Its place is reached."""
    text = PendingLogprobs([told(b"a", 0, 1), told(b"", 1, 1)])
    assert len(text.take("a")) == 2


def test_many_tokens_without_text_are_overdue_unless_text_is_to_come() -> None:
    """Not 31, not those that wait for their own text, and not once they were taken."""
    taken = PendingLogprobs([told(b"", 0, 0)] * 32)
    assert len(taken.take("")) == 32
    texts = (
        PendingLogprobs([told(b"", 0, 0)] * 32),
        PendingLogprobs([told(b"", 0, 0)] * 31),
        PendingLogprobs([told(b"S", 0, 1)] * 99),
        taken,
    )
    assert [text.is_overdue for text in texts] == [True, False, False, False]


@pytest.mark.parametrize("data", [b"DE", b"", "é".encode()])
def test_token_is_not_told_when_it_is_no_part_of_the_text(data: bytes) -> None:
    """One of a stop string, and one that ended the answer, whatever its text."""
    text = PendingLogprobs([told(b"ab", 0, 2), told(data, 2, 4), told(data, 4, None)])
    assert data_of(text.take("ab")) == b"ab"
    assert text.take_last("") == []
    assert PendingLogprobs([told(data, 0, None)]).take_last("any") == []


@pytest.mark.parametrize(
    ("before", "data", "text"),
    [
        (b"", b"aSTOP", "a"),
        (b"", "aé日STOP".encode(), "aé日"),
        ("é".encode()[:1], "é".encode()[1:] + b"STOP", "é"),
        ("😀".encode()[:2], "😀".encode()[2:] + "éSTOP".encode(), "😀é"),
    ],
)
def test_token_is_told_with_the_bytes_before_a_stop_string_when_that_cuts_it(
    before: bytes, data: bytes, text: str
) -> None:
    """Whole characters, of which the first may have begun earlier."""
    n_characters = len((before + data).decode())
    tokens = [told(before, 0, 1)] if before else []
    one = PendingLogprobs([*tokens, told(data, 0, n_characters), told(b"x", n_characters, n_characters + 1)])
    out = one.take_last(text)
    assert data_of(out) == text.encode()
    assert out[-1].token.shown == likely(data).shown, "it is still that token"


def test_token_is_dropped_when_only_the_broken_bytes_before_it_are_sent() -> None:
    """Bytes that are no UTF-8 become a character when the next token comes, and a stop string may begin right there."""
    pending = PendingLogprobs([told(b"\xc3", 0, 1), told(b"STO", 0, 4), told(b"P", 4, 5)])
    assert data_of(pending.take_last("\ufffd")) == b"\xc3"


TOKENS = [b"a", b"b", b"ab", b"STO", b"P", b"aST", "é".encode(), "é".encode()[:1], "é".encode()[1:], b"\xff"]
TOKENS += ["😀".encode()[:2], "😀".encode()[2:], "x😀".encode(), b""]
TABLE = TokenBytes(TOKENS)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    ids=st.lists(st.integers(0, len(TOKENS) - 1), max_size=12),
    ends=st.booleans(),
    stop=st.sampled_from(["STOP", "ba", "éb"]),
)
def test_bytes_are_the_text_and_streams_tell_the_same_for_any_tokens(ids: list[int], ends: bool, stop: str) -> None:
    """Cut by a stop string or not, with and without a token that ends it; and all that was told goes with its text."""
    sequence = SequenceText(Detokenizer(TABLE), StopMatcher((stop,)), 0)
    streamed, everything, whole, out = PendingLogprobs(), list[TokenLogprobs](), "", list[TokenLogprobs]()
    for place, token_id in enumerate(ids):
        is_over = sequence.push(token_id, OfToken(-0.5, (), ()), is_text=not (ends and place == len(ids) - 1))
        text, _, new = sequence.take()
        streamed.add(new)
        everything += new
        whole += text
        out += streamed.take(text) if text else []
        assert whole.startswith(data_of(out).decode("utf-8", "replace"))
        if is_over:
            break
    sequence.end()
    rest, _, _ = sequence.take()
    out += streamed.take(rest)
    out += streamed.take_last("")
    assert out == PendingLogprobs(everything).take_last(whole + rest)
    assert data_of(out).decode("utf-8", "replace") == whole + rest


def test_chat_has_the_shape_of_the_sdk() -> None:
    """All keys, bytes as numbers, the likeliest in their order."""
    tokens = [told(b"a", 0, 1, likely(b"b", -0.25), likely(b"\xf0\x9f", -1.5)), told(b"", 1, 1)]
    fields = chat_logprobs(tokens)
    assert fields == {
        "content": [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "b", "logprob": -0.25, "bytes": [98]},
                    {"token": "\\xf0\\x9f", "logprob": -1.5, "bytes": [240, 159]},
                ],
            },
            {"token": "", "logprob": -0.5, "bytes": [], "top_logprobs": []},
        ],
        "refusal": None,
    }
    assert ChoiceLogprobs.model_validate(fields, strict=True).content


def test_completion_has_the_shape_of_the_sdk() -> None:
    """Lists side by side; the token is among the likeliest, whether it is one of them or not."""
    tokens = [told(b"a", 0, 1, likely(b"b", -0.25)), told(b"c", 1, 2, likely(b"c", -0.5)), told(b"d", 2, 3)]
    fields = completion_logprobs(tokens)
    assert fields == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "tokens": ["a", "c", "d"],
        "top_logprobs": [{"b": -0.25, "a": -0.5}, {"c": -0.5}, {"d": -0.5}],
    }
    assert Logprobs.model_validate(fields, strict=True).tokens == ["a", "c", "d"]


def test_completion_keeps_the_likeliest_of_tokens_that_look_the_same() -> None:
    """An object has each key once."""
    (top,) = completion_logprobs([told(b"x", 0, 1, likely(b"a", -1.0), likely(b"a", -2.0))])["top_logprobs"]
    assert top == {"a": -1.0, "x": -0.5}


def test_nothing_is_told_of_nothing() -> None:
    """Both shapes stay whole."""
    assert chat_logprobs([]) == {"content": [], "refusal": None}
    assert all(value == [] for value in completion_logprobs([]).values())


def test_text_of_many_tokens_is_told_in_one_go() -> None:
    """A step may give several."""
    tokens = told_text("hello")
    assert PendingLogprobs(tokens).take("hello") == list(tokens)
    assert ByteTokenizer().decode(byte for one in tokens for byte in one.token.data) == "hello"
