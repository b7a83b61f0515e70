"""Who is who."""

from __future__ import annotations

from sluiceway.api.http.request import caller_of


def caller(*headers: tuple[bytes, bytes]) -> str:
    return caller_of({"type": "http", "headers": list(headers)})


def test_a_caller_is_known_by_its_credentials_which_are_not_kept() -> None:
    """In either header; nothing can be read from the word, and it has no slash."""
    word = caller((b"authorization", b"Bearer secret"))
    assert word == caller((b"accept", b"x"), (b"authorization", b"Bearer secret"))
    assert word != caller((b"authorization", b"Bearer other")) != caller((b"x-api-key", b"Bearer secret"))
    assert "secret" not in word and "/" not in word


def test_the_header_is_part_of_who_a_caller_is() -> None:
    """Else one could be mistaken for another by the spelling of a scheme, or by the border between two values."""
    words = {
        caller((b"x-api-key", b"bearer T")),
        caller((b"authorization", b"Bearer T")),
        caller((b"x-api-key", b"T")),
        caller((b"authorization", b"bearer T"), (b"x-api-key", b"T")),
        caller((b"authorization", b"bearer T\0x-api-key"), (b"x-api-key", b"T")),
        caller((b"authorization", b"bearer T\0T")),
    }
    assert len(words) == 6


def test_all_that_send_none_are_one_caller() -> None:
    """There is nothing to tell them apart by."""
    assert caller() == caller((b"accept", b"x")) == ""


def test_a_scheme_may_be_written_in_any_way() -> None:
    """The credentials themselves may not."""
    words = {caller((b"authorization", value)) for value in (b"Bearer aB", b"bearer aB", b"BEARER  aB")}
    assert len(words) == 1
    assert caller((b"authorization", b"Bearer ab")) not in words
    assert caller((b"authorization", b"aB")) != caller((b"authorization", b"ab"))
    assert caller((b"x-api-key", b"Ab c")) != caller((b"x-api-key", b"ab c"))
