"""Which caller a request belongs to."""

from __future__ import annotations

from sluiceway.api.http.request import caller_of


def caller(*headers: tuple[bytes, bytes]) -> str:
    return caller_of({"type": "http", "headers": list(headers)})


def test_a_caller_is_known_by_its_credentials_which_are_not_kept() -> None:
    """They may be in either header. The name of a caller reveals nothing, and has no slash."""
    word = caller((b"authorization", b"Bearer secret"))
    assert word == caller((b"accept", b"x"), (b"authorization", b"Bearer secret"))
    assert word != caller((b"authorization", b"Bearer other")) != caller((b"x-api-key", b"Bearer secret"))
    assert "secret" not in word and "/" not in word


def test_the_name_of_the_header_is_part_of_a_caller() -> None:
    """Otherwise the spelling of a scheme, or the border of two values, could mix up two callers."""
    words = {
        caller((b"x-api-key", b"bearer T")),
        caller((b"authorization", b"Bearer T")),
        caller((b"x-api-key", b"T")),
        caller((b"authorization", b"bearer T"), (b"x-api-key", b"T")),
        caller((b"authorization", b"bearer T\0x-api-key"), (b"x-api-key", b"T")),
        caller((b"authorization", b"bearer T\0T")),
    }
    assert len(words) == 6


def test_requests_without_credentials_have_one_caller() -> None:
    assert caller() == caller((b"accept", b"x")) == ""


def test_the_case_of_a_scheme_does_not_matter() -> None:
    """The case of the credentials does."""
    words = {caller((b"authorization", value)) for value in (b"Bearer aB", b"bearer aB", b"BEARER  aB")}
    assert len(words) == 1
    assert caller((b"authorization", b"Bearer ab")) not in words
    assert caller((b"authorization", b"aB")) != caller((b"authorization", b"ab"))
    assert caller((b"x-api-key", b"Ab c")) != caller((b"x-api-key", b"ab c"))
