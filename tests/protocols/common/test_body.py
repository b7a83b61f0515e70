"""Raw bodies: what is no JSON, what would hurt the parser, and the names of the fields at fault."""

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
    """An object of so many levels, the outermost included."""
    return ('{"first": "[", "deep": ' + opening * (levels - 1) + "1" + closing * (levels - 1) + "}").encode()


def test_object_is_read_when_the_body_is_one() -> None:
    """With a byte order mark, with one key in two objects, with an escaped quote."""
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
def test_keys_are_named_when_their_object_has_them_twice(body: str, param: str, named: str) -> None:
    """Which value counts would be a guess, also where they are equal."""
    refusal = refusal_of(body.encode())
    assert (refusal.code, refusal.param) == ("invalid_json", param)
    assert f"{named}. A key" in refusal.message


def test_ten_keys_are_named_when_many_come_twice() -> None:
    """And the rest are counted."""
    twice = ",".join(f'"{i}": 0' for i in range(25))
    refusal = refusal_of(f"{{{twice},{twice}}}".encode())
    assert "`9` and 15 more" in refusal.message and "`10`" not in refusal.message


def test_a_key_is_named_without_its_path_when_the_body_is_long() -> None:
    """Looking for the path would take longer than it is worth."""
    refusal = refusal_of(b'{"x": {"a": 1, "a": 2}, "b": "' + b"x" * (1 << 20) + b'"}')
    assert refusal.param == "a"


def test_object_is_refused_when_it_has_too_many_keys() -> None:
    """As many as are allowed are read."""
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
def test_body_is_quick_when_it_is_short_and_has_few_values(body: bytes, quick: bool) -> None:
    """Both bounds count: each bounds another part of the work."""
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
def test_body_is_refused_with_the_position_when_it_is_no_json(body: bytes) -> None:
    """The place helps to find it."""
    refusal = refusal_of(body)
    assert refusal.code == "invalid_json"
    assert "at character" in refusal.message


@pytest.mark.parametrize("body", [b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}', '{"a": 1}'.encode("utf-16")])
def test_body_is_refused_when_it_is_not_utf8(body: bytes) -> None:
    """Also surrogates that are written as if they were characters."""
    assert "not UTF-8" in refusal_of(body).message


@pytest.mark.parametrize("body", [b"[]", b'"a"', b"1", b"null", b"true"])
def test_body_is_refused_when_it_is_no_object(body: bytes) -> None:
    """Fields need names."""
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
def test_field_is_named_when_its_number_is_none(literal: str, form: str, path: str) -> None:
    """Python's parser takes these; JSON has no such numbers."""
    refusal = refusal_of((form % literal).encode())
    assert refusal.param == path
    assert f"{literal} is not JSON" in refusal.message


def test_field_is_named_when_its_integer_is_endless() -> None:
    """An integer of 10^5 digits would take quadratic time to convert."""
    refusal = refusal_of(b'{"a": 1, "seed": ' + b"1" * 100_000 + b"}")
    assert refusal.param == "seed"
    assert "100000 digits" in refusal.message


def test_odd_number_is_refused_without_a_path_when_the_body_is_long() -> None:
    """Looking for it would take longer than it is worth."""
    refusal = refusal_of(b'{"a": "' + b"x" * (1 << 20) + b'", "b": NaN}')
    assert refusal.param is None
    assert "NaN" in refusal.message


def test_syntax_is_refused_when_it_breaks_after_an_odd_number() -> None:
    """The second look finds what the first did not come to."""
    assert "at character" in refusal_of(b'{"a": NaN, "b": }').message


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_taken_when_it_is_at_the_limit(opening: str, closing: str) -> None:
    """The limit is exact."""
    assert "deep" in read_object(nested(MAX_NESTING, opening, closing))


@pytest.mark.parametrize("levels", [MAX_NESTING + 1, 3_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("[", ""), ('{"a":', "")])
def test_field_is_named_when_it_is_nested_too_deeply(levels: int, opening: str, closing: str) -> None:
    """Whether or not it is ever closed."""
    refusal = refusal_of(nested(levels, opening, closing))
    assert (refusal.code, refusal.param) == ("nested_too_deeply", "deep")


@pytest.mark.parametrize("body", [b"[" * 100, b'{"a\\"b":' + b"[" * 100, b'{"' + b"k" * 200 + b'":' + b"[" * 100])
def test_nesting_is_refused_without_a_name_when_there_is_no_plain_one(body: bytes) -> None:
    """A list has no name; odd and long names are not repeated."""
    refusal = refusal_of(body)
    assert (refusal.code, refusal.param) == ("nested_too_deeply", None)


def test_brackets_are_not_counted_when_they_are_text() -> None:
    """Source code in a prompt is no nesting, with whatever quotes and backslashes."""
    text = "[{" * 1000 + '"\\' + "[" * 1000
    assert read_object(json.dumps({"prompt": text}).encode()) == {"prompt": text}


def test_lists_are_refused_when_there_are_too_many() -> None:
    """Flat, so that only their number is wrong."""
    refusal = refusal_of(b'{"a": 1, "x": [' + b"[]," * MAX_CONTAINERS + b"1]}")
    assert (refusal.code, refusal.param) == ("too_many_values", "x")


def test_numbers_are_refused_when_there_are_too_many() -> None:
    """One list is enough; as many as allowed are read."""
    assert read_object(b'{"prompt": [' + b"1," * MAX_COMMAS + b"1]}")
    assert refusal_of(b'{"prompt": [' + b"1," * (MAX_COMMAS + 1) + b"1]}").code == "too_many_values"


@pytest.mark.parametrize(
    "rest", [b'"' + b'\\"' * 400_000, b" " * 800_000, b'"' * 800_001, b'"\\' * 400_001, b"]" * 400_000]
)
def test_scan_ends_when_the_body_is_long_and_broken(rest: bytes) -> None:
    """Linear time: a pattern that starts again at every byte would run into the time limit of the test."""
    refusal = refusal_of(b'{"x": [' + b"[]," * 100 + rest)
    assert refusal.code == "invalid_json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=120,
)


@settings(max_examples=150, derandomize=True)
@given(value=st.dictionaries(st.text(), JSON, max_size=5), levels=st.integers(0, 2 * MAX_NESTING))
def test_nesting_is_measured_exactly_when_the_json_is_valid(value: dict[str, object], levels: int) -> None:
    """The scan of the bytes agrees with a count over the values."""
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
def test_body_gives_an_object_or_a_refusal_when_it_is_garbage(body: bytes) -> None:
    """Nothing else comes out."""
    try:
        assert isinstance(read_object(body), dict)
    except RequestError as error:
        assert error.refusal.status == 400
        assert error.refusal.message
