"""Incremental decoding: `push` and `flush` together give the text, for any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.tokenizer.text.detokenizer import Detokenizer, TokenBytes

BYTES = TokenBytes([bytes([byte]) for byte in range(256)])


def pieces_of(data: bytes) -> list[str]:
    """The results of pushing each byte, and of the flush."""
    detokenizer = Detokenizer(BYTES)
    return [*(detokenizer.push(byte) for byte in data), detokenizer.flush()]


@settings(deadline=None, derandomize=True)
@given(st.lists(st.binary(max_size=6), max_size=12))
def test_joined_pieces_are_the_decoded_bytes_for_any_tokens(tokens: list[bytes]) -> None:
    """Whatever bytes the tokens have, and wherever they cut characters."""
    table = TokenBytes(tokens)
    assert table.decode(range(len(tokens))) == b"".join(tokens).decode("utf-8", "replace")


@settings(deadline=None, derandomize=True)
@given(st.text(max_size=20))
def test_no_piece_holds_half_a_character_when_text_comes_byte_by_byte(text: str) -> None:
    """Each character appears whole, with its last byte, and nothing waits for the flush."""
    pieces = pieces_of(text.encode())
    assert [piece for piece in pieces if piece] == list(text)
    assert pieces[-1] == ""


@pytest.mark.parametrize("n_bytes", [1, 2, 3])
def test_flush_gives_one_replacement_character_when_the_text_ends_inside_an_emoji(n_bytes: int) -> None:
    """Cut after 1, 2 or 3 of 4 bytes: nothing until the end, then one U+FFFD."""
    assert pieces_of("😀".encode()[:n_bytes]) == [""] * n_bytes + ["\ufffd"]


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"\xff\xff", ["\ufffd", "\ufffd", ""]),
        (b"\x80a", ["\ufffd", "a", ""]),
        (b"\xf0\x9fa", ["", "", "\ufffda", ""]),
        (b"\xe2\xf0\x9f\x98\x80", ["", "\ufffd", "", "", "😀", ""]),
        (b"\xed\xa0\x80", ["", "", "\ufffd\ufffd\ufffd", ""]),
        ("\ufffdok".encode(), ["", "", "\ufffd", "o", "k", ""]),
    ],
)
def test_invalid_bytes_are_replaced_as_soon_as_they_are_known_to_be_invalid(data: bytes, pieces: list[str]) -> None:
    """A U+FFFD that the model wrote is an ordinary character."""
    assert pieces_of(data) == pieces


@pytest.mark.parametrize("token_id", [-1, 256, 1 << 40])
def test_push_gives_nothing_for_an_id_without_a_token(token_id: int) -> None:
    """Models with padded vocabularies emit such ids, even within a character."""
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.push(token_id) for token_id in (0xC3, token_id, 0xA9)] == ["", "", "é"]


def test_first_space_is_dropped_when_the_vocabulary_puts_one_before_the_first_word() -> None:
    """Only the first one, even if tokens without text come before it."""
    table = TokenBytes([b" one", b"", b" two"], drops_first_space=True)
    assert table.decode([1, 0, 2, 2]) == "one two two"
    assert table.decode([1]) == ""


def test_first_space_is_kept_when_a_text_continues() -> None:
    """After a prompt the space separates the answer from it."""
    table = TokenBytes([b" one"], drops_first_space=True)
    detokenizer = Detokenizer(table, continues=True)
    assert detokenizer.push(0) + detokenizer.flush() == " one"


def test_nothing_is_kept_of_a_finished_character() -> None:
    """So memory does not grow with the text."""
    detokenizer = Detokenizer(BYTES)
    for char in "é😀漢x" * 100:
        texts = [detokenizer.push(byte) for byte in char.encode()]
        assert texts[-1] == char and not detokenizer.is_inside_character
    assert detokenizer.flush() == ""


TABLE = TokenBytes([b" one", "é".encode()[:1], b"", b"\\"], drops_first_space=True, specials={2: "<end>"})


@pytest.mark.parametrize(
    ("token_id", "shown"), [(0, " one"), (1, "\\xc3"), (2, "<end>"), (3, "\\"), (4, "token_id:4"), (-1, "token_id:-1")]
)
def test_a_single_token_can_be_shown(token_id: int, shown: str) -> None:
    """Half a character escaped, a special token by its name, an unknown id by its number."""
    assert TABLE.shown(token_id) == shown


def test_data_is_what_a_token_would_add_to_the_text() -> None:
    """The first space is missing if it is dropped from the text, but not in a token that ends a character."""
    detokenizer = Detokenizer(TABLE)
    assert (detokenizer.data(0), detokenizer.data(2), detokenizer.data(99)) == (b"one", b"", b"")
    detokenizer.push(1)
    assert detokenizer.data(0) == b" one"
    assert detokenizer.push(0) == "\ufffd one"
    assert detokenizer.data(0) == b" one"


def test_it_is_inside_a_character_until_that_is_whole() -> None:
    """Or until the bytes prove to be invalid."""
    detokenizer = Detokenizer(BYTES)
    inside = []
    for byte in b"a" + "é".encode() + b"\xf0a":
        detokenizer.push(byte)
        inside.append(detokenizer.is_inside_character)
    assert inside == [False, True, False, True, False]


@settings(deadline=None, derandomize=True)
@given(tokens=st.lists(st.binary(max_size=4) | st.just(b" x"), max_size=8))
def test_data_of_all_tokens_is_the_text_for_any_tokens(tokens: list[bytes]) -> None:
    """With and without a dropped first space."""
    detokenizer = Detokenizer(TokenBytes(tokens, drops_first_space=True))
    data, text = b"", ""
    for token_id in range(len(tokens)):
        data += detokenizer.data(token_id)
        text += detokenizer.push(token_id)
    assert data.decode("utf-8", "replace") == text + detokenizer.flush()
