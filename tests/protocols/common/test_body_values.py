"""Checks of single values: what is accepted, and what the refusal of other values says."""

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
def test_a_value_in_a_message_is_short_and_printable(value: object, shown: str) -> None:
    assert shorten(value) == shown
    shorten(value).encode()


def test_path_has_dots_before_names_and_brackets_around_indexes() -> None:
    """Long names are cut, and characters that cannot be logged are escaped."""
    assert join_path(join_path(join_path("", "messages"), 0), "content") == "messages[0].content"
    assert join_path("", "x" * 100) == "x" * 64
    assert join_path("", "é\n\ud800") == "é\\n\\ud800"


@pytest.mark.parametrize("text", ["", "a", "é😀", "\0", "\ufeff", "\uffff"])
def test_any_characters_are_text(text: str) -> None:
    """NUL, a byte order mark and a noncharacter are accepted too."""
    assert require_text(text, "prompt") == text


@pytest.mark.parametrize("value", [None, 1, True, [], {}])
def test_a_value_that_is_no_string_is_not_text(value: object) -> None:
    assert refused(lambda: require_text(value, "prompt")) == (
        "prompt",
        f"`prompt` must be a string, not {shorten(value)}.",
    )


@pytest.mark.parametrize(("text", "at"), [("\ud800", 0), ("ab\udfff\ud800", 2)])
def test_text_with_a_lone_surrogate_is_refused_with_its_position(text: str, at: int) -> None:
    """It has no encoding in UTF-8."""
    param, message = refused(lambda: require_text(text, "stop[2]"))
    assert param == "stop[2]"
    assert f"lone surrogate at character {at}" in message


def test_empty_text_is_refused_where_text_is_required() -> None:
    assert require_filled_text(" ", "stop") == " "
    assert refused(lambda: require_filled_text("", "stop"))[0] == "stop"


def test_a_value_that_is_no_list_or_too_long_a_list_is_refused() -> None:
    assert require_list([1], "stop", expected="a list", max_items=1) == [1]
    assert require_list([1, 2], "stop", expected="a list") == [1, 2]
    assert refused(lambda: require_list("a", "stop", expected="a list"))[1] == '`stop` must be a list, not "a".'
    assert refused(lambda: require_list([1, 2], "stop", expected="a list", max_items=1))[1].endswith(
        "at most 1 entries, not 2."
    )


@pytest.mark.parametrize("ids", [[], [0], [1, MAX_TOKEN_ID]])
def test_token_ids_in_their_range_are_accepted(ids: list[object]) -> None:
    """The engine checks later whether the vocabulary has them."""
    assert require_token_ids(ids, "prompt") == tuple(ids)


@pytest.mark.parametrize("wrong", [-1, MAX_TOKEN_ID + 1, 10**30, True, 1.0, "1", None, [1]])
def test_a_wrong_token_id_is_refused_with_its_index(wrong: object) -> None:
    """Booleans and floats are no ids."""
    assert refused(lambda: require_token_ids([5, wrong, wrong], "prompt"))[0] == "prompt[1]"


def test_ten_wrong_token_ids_are_named_and_the_rest_counted() -> None:
    _, message = refused(lambda: require_token_ids([5, -1, 6, "x"], "prompt"))
    assert "`prompt[1]`" in message and "`prompt[3]`" in message and "more" not in message
    param, message = refused(lambda: require_token_ids([-1] * 25, "prompt"))
    assert param == "prompt[0]" and "`prompt[9]`" in message and "`prompt[10]`" not in message
    assert message.endswith("There are 15 more mistakes of this kind.")


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, "`0`"), (2, "`0` and `1`"), (3, "`0`, `1` and `2`"), (MAX_NAMED + 5, "`8`, `9` and 5 more")],
)
def test_ten_paths_are_listed_and_the_rest_counted(n: int, expected: str) -> None:
    """So the length of a message is bounded."""
    assert listed([str(i) for i in range(n)]).endswith(expected)
    assert listed(["a"], "b[0]") == "`b[0].a`"


def test_every_item_is_lowered_or_all_wrong_ones_are_named() -> None:
    """The code and the field of the refusal are those of the first wrong item."""
    assert lower_each(lambda item: require_text(item, "x"), ["a", "b"]) == ("a", "b")
    items = enumerate(["a", 1, "b", None])
    param, message = refused(lambda: lower_each(lambda one: require_text(one[1], f"x[{one[0]}]"), items))
    assert param == "x[1]" and "`x[1]` must be" in message and "`x[3]` must be" in message
    many: list[object] = [1] * (MAX_NAMED + 3)
    assert "3 more mistakes" in refused(lambda: lower_each(lambda item: require_text(item, "x"), many))[1]


def test_checking_stops_after_a_hundred_wrong_items() -> None:
    """A wrong item costs more time than a correct one."""
    items = iter([None] * (MAX_COUNTED + 5))
    refused(lambda: lower_each(lambda item: require_text(item, "x"), items))
    assert len(list(items)) == 5


@pytest.mark.parametrize("value", [-100, 100, 0, 0.5])
def test_a_number_in_its_range_is_accepted(value: float) -> None:
    """The range includes both ends."""
    assert require_number(value, "x", low=-100, high=100) == value


@pytest.mark.parametrize("value", [-100.1, 101, float("inf"), float("nan"), 10**400, True, "1", None])
def test_a_number_outside_its_range_and_other_values_are_refused(value: object) -> None:
    """NaN and infinity are outside of every range."""
    param, message = refused(lambda: require_number(value, "x", low=-100, high=100))
    assert param == "x"
    assert "a number from -100 to 100" in message


def refused(call: Any) -> tuple[str | None, str]:
    """The field and the message of the refusal, which must be a 400."""
    with pytest.raises(RequestError) as caught:
        call()
    assert caught.value.refusal.status == 400
    return caught.value.refusal.param, caught.value.refusal.message
