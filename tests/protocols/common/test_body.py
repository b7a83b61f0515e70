"""Raw bodies: refusals of bodies that are no JSON or cost the parser too much, and the names of wrong fields."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.common.body import (
    MAX_COMMAS,
    MAX_CONTAINERS,
    MAX_KEYS,
    MAX_NESTING,
    QUICK_BYTES,
    QUICK_VALUES,
    is_quick,
    read_object,
)


def refusal_of(body: bytes) -> Refusal:
    with pytest.raises(RequestError) as caught:
        read_object(body)
    assert caught.value.refusal.status == 400
    return caught.value.refusal


def nested(levels: int, opening: str = "[", closing: str = "]") -> bytes:
    """An object with this many levels, the outermost included."""
    return ('{"first": "[", "deep": ' + opening * (levels - 1) + "1" + closing * (levels - 1) + "}").encode()


def test_an_object_is_read() -> None:
    """It may have a byte order mark, the same key in two objects, and escaped quotes."""
    assert read_object('\ufeff{"c": 1, "a": {"a": ["\\"é"]}}'.encode()) == {"c": 1, "a": {"a": ['"é']}}


@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        ('{"n": 1, "n": 1}', "n", "`n`"),
        ('{"a": {"b": [0, {"c": 1, "c": 2}]}}', "a.b[1].c", "`a.b[1].c`"),
        ('{"x": 0, "a": 1, "b": 1, "b": 2, "a": 2}', "a", "`a` and `b`"),
        ('{"\\u0061": 1, "a": 2}', "a", "`a`"),
        ('{"": 1, "": 2}', "", "``"),
        ("[" + '{"a": 1, "a": 2}' + "]", "[0].a", "`[0].a`"),
    ],
)
def test_keys_that_an_object_has_twice_are_named(body: str, param: str, named: str) -> None:
    """The server could only guess which value the client means. It refuses two equal values too."""
    refusal = refusal_of(body.encode())
    assert (refusal.code, refusal.param) == ("invalid_json", param)
    assert f"{named}. A key" in refusal.message


def test_ten_double_keys_are_named_and_the_rest_counted() -> None:
    twice = ",".join(f'"{i}": 0' for i in range(25))
    refusal = refusal_of(f"{{{twice},{twice}}}".encode())
    assert "`9` and 15 more" in refusal.message and "`10`" not in refusal.message


def test_a_double_key_in_a_long_body_is_named_without_its_path() -> None:
    """Finding the path would take too long."""
    refusal = refusal_of(b'{"x": {"a": 1, "a": 2}, "b": "' + b"x" * (1 << 20) + b'"}')
    assert refusal.param == "a"


def test_an_object_with_too_many_keys_is_refused() -> None:
    keys = ",".join(f'"{i}": 0' for i in range(MAX_KEYS))
    assert len(read_object(f'{{"x": {{{keys}}}}}'.encode())["x"]) == MAX_KEYS
    refusal = refusal_of(f'{{"x": {{{keys}, "y": 0}}}}'.encode())
    assert (refusal.code, refusal.param) == ("too_many_values", "x")
    assert f"at most {MAX_KEYS} keys, not {MAX_KEYS + 1}" in refusal.message


@pytest.mark.parametrize(
    ("body", "quick"),
    [
        (b"", True),
        (b"x" * QUICK_BYTES, True),
        (b"x" * (QUICK_BYTES + 1), False),
        (b"[{," * (QUICK_VALUES // 3), True),
        (b"," * (QUICK_VALUES + 1), False),
        (b"[" * (QUICK_VALUES + 1), False),
        (b"{" * (QUICK_VALUES + 1), False),
    ],
)
def test_a_body_is_quick_when_it_is_short_and_has_few_values(body: bytes, quick: bool) -> None:
    """Its length and its number of values each bound a part of the work."""
    assert is_quick(body) is quick


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"a":}',
        b"{'a': 1}",
        b'{"a": 1} x',
        b'{"a": 01}',
        b'{"a": "\n"}',
        b"nul",
        b'{"a": nan}',
        b"\0",
    ],
)
def test_a_body_that_is_no_json_is_refused_with_the_position(body: bytes) -> None:
    refusal = refusal_of(body)
    assert refusal.code == "invalid_json"
    assert "at character" in refusal.message


@pytest.mark.parametrize("body", [b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', '{"a": 1}'.encode("utf-16")])
def test_a_body_that_is_not_utf8_is_refused(body: bytes) -> None:
    """Encoded surrogates are not UTF-8 either."""
    assert "not UTF-8" in refusal_of(body).message


@pytest.mark.parametrize("body", [b"[]", b'"a"', b"1", b"null", b"true"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    assert "JSON object" in refusal_of(body).message


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize(
    ("form", "path"),
    [
        ('{"temperature": %s}', "temperature"),
        ('{"a": 1, "b": [1, {"c": "x", "d": [[], 2, %s]}]}', "b[1].d[2]"),
        ("%s", "body"),
        ("[%s]", "[0]"),
    ],
)
def test_nan_and_infinity_are_refused_with_their_path(literal: str, form: str, path: str) -> None:
    """Python's parser accepts them, but JSON has no such numbers."""
    refusal = refusal_of((form % literal).encode())
    assert refusal.param == path
    assert f"{literal} is not JSON" in refusal.message


def test_a_field_with_a_very_long_integer_is_named() -> None:
    """Converting it would take quadratic time."""
    refusal = refusal_of(b'{"a": 1, "seed": ' + b"1" * 100_000 + b"}")
    assert refusal.param == "seed"
    assert "100000 digits" in refusal.message


def test_nan_in_a_long_body_is_refused_without_its_path() -> None:
    """Finding the path would take too long."""
    refusal = refusal_of(b'{"a": "' + b"x" * (1 << 20) + b'", "b": NaN}')
    assert refusal.param is None
    assert "NaN" in refusal.message


def test_a_syntax_error_after_nan_is_reported_instead_of_it() -> None:
    """The search for the path of NaN finds the error."""
    assert "at character" in refusal_of(b'{"a": NaN, "b": }').message


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_up_to_the_limit_is_accepted(opening: str, closing: str) -> None:
    assert "deep" in read_object(nested(MAX_NESTING, opening, closing))


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 3_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("[", ""), ('{"a":', "")])
def test_a_field_with_deeper_nesting_is_named(levels: int, opening: str, closing: str) -> None:
    """The brackets may be closed or not."""
    refusal = refusal_of(nested(levels, opening, closing))
    assert (refusal.code, refusal.param) == ("nested_too_deeply", "deep")


@pytest.mark.parametrize("body", [b"[" * 100, b'{"a\\"b":' + b"[" * 100, b'{"' + b"k" * 200 + b'":' + b"[" * 100])
def test_deep_nesting_is_refused_without_a_name_when_there_is_no_simple_one(body: bytes) -> None:
    """A list has no name. The message does not repeat names that are long or have quotes."""
    refusal = refusal_of(body)
    assert (refusal.code, refusal.param) == ("nested_too_deeply", None)


def test_brackets_in_a_string_are_not_counted() -> None:
    """A prompt may be source code, with quotes and backslashes."""
    text = "[{" * 1000 + '"\\' + "[" * 1000
    assert read_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


def test_too_many_lists_are_refused() -> None:
    refusal = refusal_of(b'{"a": 1, "x": [' + b"[]," * MAX_CONTAINERS + b"1]}")
    assert (refusal.code, refusal.param) == ("too_many_values", "x")


def test_too_many_numbers_are_refused() -> None:
    assert read_object(b'{"prompt": [' + b"1," * MAX_COMMAS + b"1]}")
    assert refusal_of(b'{"prompt": [' + b"1," * (MAX_COMMAS + 1) + b"1]}").code == "too_many_values"


@pytest.mark.parametrize(
    "rest", [b'"' + b'\\"' * 400_000, b" " * 800_000, b'"' * 800_001, b'"\\' * 400_001, b"]" * 400_000]
)
def test_a_long_broken_body_is_scanned_in_linear_time(rest: bytes) -> None:
    """With a pattern that starts again at every byte, the test would exceed its time limit."""
    refusal = refusal_of(b'{"x": [' + b"[]," * 100 + rest)
    assert refusal.code == "invalid_json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=120,
)


@settings(max_examples=150, derandomize=True)
@given(value=st.dictionaries(st.text(), JSON, max_size=5), levels=st.integers(0, 2 * MAX_NESTING))
def test_nesting_of_any_json_is_measured_exactly(value: dict[str, object], levels: int) -> None:
    """The scan of the bytes finds the same depth as a walk through the values."""
    deep: object = value
    for _ in range(levels):
        deep = ["[", deep]
    whole = {"x": deep, "pad": [[]] * MAX_NESTING}
    body = json.dumps(whole, ensure_ascii=False).encode("utf-8", "replace")
    if depth_of(whole) <= MAX_NESTING:
        assert read_object(body) == json.loads(body)
    else:
        assert refusal_of(body).param == "x"


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@settings(max_examples=300, derandomize=True)
@given(body=st.binary(max_size=200) | st.text('[]{}":,\\ 1aNn', max_size=200).map(str.encode))
def test_any_bytes_are_an_object_or_a_refusal(body: bytes) -> None:
    """No other exception is raised."""
    try:
        assert isinstance(read_object(body), dict)
    except RequestError as error:
        assert error.refusal.status == 400
        assert error.refusal.message
