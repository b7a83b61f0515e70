"""Single values: what passes, and what a refusal says."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import RequestError
from sluiceway.protocols.common.body import (
    MAX_COUNTED,
    MAX_NAMED,
    MAX_TOKEN_ID,
    join_path,
    listed,
    lower_each,
    require_filled_text,
    require_list,
    require_number,
    require_text,
    require_token_ids,
    shorten,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\n", '"a\\n"'),
        ("x" * 65, '"' + "x" * 64 + '…"'),
        ("é", '"é"'),
        ("\ud800", '"\\ud800"'),
        ({"a": 1}, "an object"),
        ([1, 2], "a list of 2"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        (10**100, "a number of 101 characters"),
        (object(), "a object"),
    ],
)
def test_value_is_short_and_printable_when_shown(value: object, shown: str) -> None:
    """A message never repeats a megabyte, nor half a character."""
    assert shorten(value) == shown
    shorten(value).encode()


def test_path_is_in_the_style_of_openai_when_joined() -> None:
    """Names by dots, indexes in brackets; long names are cut, and what cannot be logged is escaped."""
    assert join_path(join_path(join_path("", "messages"), 0), "content") == "messages[0].content"
    assert join_path("", "x" * 100) == "x" * 64
    assert join_path("", "é\n\ud800") == "é\\n\\ud800"


@pytest.mark.parametrize("text", ["", "a", "é😀", "\0", "\ufeff", "\uffff"])
def test_text_passes_when_it_is_any_string_of_characters(text: str) -> None:
    """NUL, a byte order mark and noncharacters are text."""
    assert require_text(text, "prompt") == text


@pytest.mark.parametrize("value", [None, 1, True, [], {}])
def test_text_is_refused_when_it_is_no_string(value: object) -> None:
    """Numbers are not turned into text."""
    assert refused(lambda: require_text(value, "prompt")) == (
        "prompt",
        f"`prompt` must be a string, not {shorten(value)}.",
    )


@pytest.mark.parametrize(("text", "at"), [("\ud800", 0), ("ab\udfff\ud800", 2)])
def test_text_is_refused_with_its_position_when_it_has_half_a_character(text: str, at: int) -> None:
    """A lone surrogate can neither be encoded nor sent back."""
    param, message = refused(lambda: require_text(text, "stop[2]"))
    assert param == "stop[2]"
    assert f"lone surrogate at character {at}" in message


def test_filled_text_is_refused_when_it_is_empty() -> None:
    """Where nothing would mean nothing."""
    assert require_filled_text(" ", "stop") == " "
    assert refused(lambda: require_filled_text("", "stop"))[0] == "stop"


def test_list_is_refused_when_it_is_none_or_too_long() -> None:
    """The cap counts before anyone looks at an item."""
    assert require_list([1], "stop", expected="a list", max_items=1) == [1]
    assert require_list([1, 2], "stop", expected="a list") == [1, 2]
    assert refused(lambda: require_list("a", "stop", expected="a list"))[1] == '`stop` must be a list, not "a".'
    assert refused(lambda: require_list([1, 2], "stop", expected="a list", max_items=1))[1].endswith(
        "at most 1 entries, not 2."
    )


@pytest.mark.parametrize("ids", [[], [0], [1, MAX_TOKEN_ID]])
def test_token_ids_pass_when_they_are_in_range(ids: list[object]) -> None:
    """Whether the vocabulary has them is not known here."""
    assert require_token_ids(ids, "prompt") == tuple(ids)


@pytest.mark.parametrize("wrong", [-1, MAX_TOKEN_ID + 1, 10**30, True, 1.0, "1", None, [1]])
def test_token_ids_are_refused_with_the_index_when_one_is_wrong(wrong: object) -> None:
    """Booleans and whole floats are no ids."""
    assert refused(lambda: require_token_ids([5, wrong, wrong], "prompt"))[0] == "prompt[1]"


def test_all_token_ids_are_named_when_several_are_wrong() -> None:
    """Ten of them, and how many more there are."""
    _, message = refused(lambda: require_token_ids([5, -1, 6, "x"], "prompt"))
    assert "`prompt[1]`" in message and "`prompt[3]`" in message and "more" not in message
    param, message = refused(lambda: require_token_ids([-1] * 25, "prompt"))
    assert param == "prompt[0]" and "`prompt[9]`" in message and "`prompt[10]`" not in message
    assert message.endswith("There are 15 more mistakes of this kind.")


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, "`0`"), (2, "`0` and `1`"), (3, "`0`, `1` and `2`"), (MAX_NAMED + 5, "`8`, `9` and 5 more")],
)
def test_paths_are_listed_when_there_are_few_and_counted_when_there_are_many(n: int, expected: str) -> None:
    """A message stays short whatever a body holds."""
    assert listed([str(i) for i in range(n)]).endswith(expected)
    assert listed(["a"], "b[0]") == "`b[0].a`"


def test_every_item_is_lowered_or_all_that_are_wrong_are_named() -> None:
    """The code and the field are those of the first."""
    assert lower_each(lambda item: require_text(item, "x"), ["a", "b"]) == ("a", "b")
    items = enumerate(["a", 1, "b", None])
    param, message = refused(lambda: lower_each(lambda one: require_text(one[1], f"x[{one[0]}]"), items))
    assert param == "x[1]" and "`x[1]` must be" in message and "`x[3]` must be" in message
    many: list[object] = [1] * (MAX_NAMED + 3)
    assert "3 more mistakes" in refused(lambda: lower_each(lambda item: require_text(item, "x"), many))[1]


def test_no_more_items_are_looked_at_when_a_hundred_are_wrong() -> None:
    """An error costs more than a value that is right."""
    items = iter([None] * (MAX_COUNTED + 5))
    refused(lambda: lower_each(lambda item: require_text(item, "x"), items))
    assert len(list(items)) == 5


@pytest.mark.parametrize("value", [-100, 100, 0, 0.5])
def test_number_passes_when_it_is_in_the_closed_range(value: float) -> None:
    """Both ends belong to it."""
    assert require_number(value, "x", low=-100, high=100) == value


@pytest.mark.parametrize("value", [-100.1, 101, float("inf"), float("nan"), 10**400, True, "1", None])
def test_number_is_refused_when_it_is_outside_or_none(value: object) -> None:
    """Not finite is outside of every range."""
    param, message = refused(lambda: require_number(value, "x", low=-100, high=100))
    assert param == "x"
    assert "a number from -100 to 100" in message


def refused(call: Any) -> tuple[str | None, str]:
    """The field and the message of the refusal, which must be a 400."""
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.refusal.status == 400
    return caught.value.refusal.param, caught.value.refusal.message
