"""Logprobs are sent with the text of their tokens, and only for tokens that are part of the answer."""

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
from support.token_logprobs import likely, logprobs_of, logprobs_of_characters


def data_of(tokens: list[TokenLogprobs]) -> bytes:
    return b"".join(one.token.data for one in tokens)


def test_token_is_taken_with_the_end_of_its_text() -> None:
    text = PendingLogprobs()
    one, two = logprobs_of(b"one", 0, 3), logprobs_of(b" two", 3, 7)
    text.add((one, two))
    assert text.take("on") == []
    assert text.take("e") == [one]
    assert text.take(" tw") == []
    assert text.take_last("o") == [two]


def test_tokens_of_one_character_are_taken_together() -> None:
    """Each of them begins where the character begins."""
    halves = [logprobs_of("é".encode()[:1], 0, 1), logprobs_of("é".encode()[1:], 0, 1)]
    text = PendingLogprobs(halves)
    assert text.take("") == []
    assert text.take("é") == halves
    assert text.take_last("") == []


def test_token_without_text_is_taken_with_the_text_before_it() -> None:
    text = PendingLogprobs([logprobs_of(b"a", 0, 1), logprobs_of(b"", 1, 1)])
    assert len(text.take("a")) == 2


def test_32_tokens_without_text_are_overdue() -> None:
    """31 tokens are not overdue, and neither are tokens that wait for their own text, or tokens that were taken."""
    taken = PendingLogprobs([logprobs_of(b"", 0, 0)] * 32)
    assert len(taken.take("")) == 32
    texts = (
        PendingLogprobs([logprobs_of(b"", 0, 0)] * 32),
        PendingLogprobs([logprobs_of(b"", 0, 0)] * 31),
        PendingLogprobs([logprobs_of(b"S", 0, 1)] * 99),
        taken,
    )
    assert [text.is_overdue for text in texts] == [True, False, False, False]


@pytest.mark.parametrize("data", [b"DE", b"", "é".encode()])
def test_token_that_is_not_part_of_the_text_is_not_taken(data: bytes) -> None:
    """Such tokens are those of a stop string, and the token that ended the answer."""
    text = PendingLogprobs([logprobs_of(b"ab", 0, 2), logprobs_of(data, 2, 4), logprobs_of(data, 4, None)])
    assert data_of(text.take("ab")) == b"ab"
    assert text.take_last("") == []
    assert PendingLogprobs([logprobs_of(data, 0, None)]).take_last("any") == []


@pytest.mark.parametrize(
    ("before", "data", "text"),
    [
        (b"", b"aSTOP", "a"),
        (b"", "aé日STOP".encode(), "aé日"),
        ("é".encode()[:1], "é".encode()[1:] + b"STOP", "é"),
        ("😀".encode()[:2], "😀".encode()[2:] + "éSTOP".encode(), "😀é"),
    ],
)
def test_token_that_a_stop_string_cuts_has_the_bytes_before_it(before: bytes, data: bytes, text: str) -> None:
    """They are whole characters. The first of them may have begun in the token before."""
    n_characters = len((before + data).decode())
    tokens = [logprobs_of(before, 0, 1)] if before else []
    one = PendingLogprobs(
        [*tokens, logprobs_of(data, 0, n_characters), logprobs_of(b"x", n_characters, n_characters + 1)]
    )
    out = one.take_last(text)
    assert data_of(out) == text.encode()
    assert out[-1].token.shown == likely(data).shown, "the token has another name"


def test_token_is_dropped_when_only_the_broken_bytes_before_it_are_sent() -> None:
    """Bytes that are not UTF-8 become a character when the next token comes. A stop string may begin there."""
    pending = PendingLogprobs([logprobs_of(b"\xc3", 0, 1), logprobs_of(b"STO", 0, 4), logprobs_of(b"P", 4, 5)])
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
def test_bytes_of_any_tokens_are_the_text_in_streams_and_bodies(ids: list[int], ends: bool, stop: str) -> None:
    """A stop string or an end token may end the answer. A stream sends no token before its text."""
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


def test_chat_logprobs_have_the_types_of_the_sdk() -> None:
    tokens = [logprobs_of(b"a", 0, 1, likely(b"b", -0.25), likely(b"\xf0\x9f", -1.5)), logprobs_of(b"", 1, 1)]
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


def test_completion_logprobs_have_the_types_of_the_sdk() -> None:
    """`top_logprobs` always has the token itself, in addition to the likeliest ones if it is not one of them."""
    tokens = [
        logprobs_of(b"a", 0, 1, likely(b"b", -0.25)),
        logprobs_of(b"c", 1, 2, likely(b"c", -0.5)),
        logprobs_of(b"d", 2, 3),
    ]
    fields = completion_logprobs(tokens)
    assert fields == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-0.5, -0.5, -0.5],
        "tokens": ["a", "c", "d"],
        "top_logprobs": [{"b": -0.25, "a": -0.5}, {"c": -0.5}, {"d": -0.5}],
    }
    assert Logprobs.model_validate(fields, strict=True).tokens == ["a", "c", "d"]


def test_completion_has_the_likeliest_of_several_tokens_with_the_same_text() -> None:
    """Their texts are the keys of an object, which has each key once."""
    (top,) = completion_logprobs([logprobs_of(b"x", 0, 1, likely(b"a", -1.0), likely(b"a", -2.0))])["top_logprobs"]
    assert top == {"a": -1.0, "x": -0.5}


def test_logprobs_of_no_tokens_have_all_keys() -> None:
    assert chat_logprobs([]) == {"content": [], "refusal": None}
    assert all(value == [] for value in completion_logprobs([]).values())


def test_several_tokens_are_taken_with_one_text() -> None:
    """A step may generate several tokens of a sequence."""
    tokens = logprobs_of_characters("hello")
    assert PendingLogprobs(tokens).take("hello") == list(tokens)
    assert ByteTokenizer().decode(byte for one in tokens for byte in one.token.data) == "hello"
