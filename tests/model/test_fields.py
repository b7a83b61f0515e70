"""Typed settings: a value of the right type is returned, and the error for another names the key."""

from __future__ import annotations

from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway.model.fields import Fields

GOOD: list[tuple[str, Any, Any]] = [
    ("integer", 3, 3),
    ("number", 3, 3.0),
    ("number", 0.5, 0.5),
    ("flag", False, False),
    ("text", "x", "x"),
    ("integers", 4, (4,)),
    ("integers", [4, 5], (4, 5)),
    ("raw", {"a": 1}, {"a": 1}),
]
BAD: list[tuple[str, Any]] = [
    ("integer", 3.5),
    ("integer", True),
    ("integer", "3"),
    ("number", float("nan")),
    ("number", float("inf")),
    ("number", True),
    ("number", [1]),
    ("text", 5),
    ("integers", "4"),
    ("integers", [4, None]),
    ("integers", True),
]


@pytest.mark.parametrize(("method", "value", "expected"), GOOD)
def test_a_value_comes_back_when_its_type_is_right(method: str, value: Any, expected: Any) -> None:
    """Only `flag` needs a default."""
    fields = Fields({"key": value}, "file")
    arguments = ("key", True) if method == "flag" else ("key",)
    assert getattr(fields, method)(*arguments) == expected


@pytest.mark.parametrize(("method", "value"), BAD)
def test_an_error_names_file_and_key_when_the_type_is_wrong(method: str, value: Any) -> None:
    """Booleans and NaN are not numbers."""
    with pytest.raises(ConfigError, match="file: key: must be"):
        getattr(Fields({"key": value}, "file"), method)("key")


def test_a_flag_is_nothing_but_true_or_false() -> None:
    """The number 1 is not accepted."""
    with pytest.raises(ConfigError, match="must be true or false"):
        Fields({"key": 1}, "file").flag("key", False)


@pytest.mark.parametrize("values", [{}, {"key": None}])
def test_null_counts_as_missing(values: dict[str, Any]) -> None:
    """The result is the default; a key without a default is an error."""
    fields = Fields(values, "file")
    assert not fields.has("key")
    assert fields.integer("key", 7) == 7
    assert fields.number("key", 0.0) == 0.0
    assert fields.integers("key") == ()
    assert fields.raw("key") is None
    with pytest.raises(ConfigError, match="is missing"):
        fields.text("key")
