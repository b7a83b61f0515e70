"""From the raw body of a request to a JSON object, or a 400 that says what is wrong and, where it can, in which field.

The parser of the standard library recurses, takes NaN and Infinity, lets the last of two equal keys win, and refuses
long integers in words about Python. So nesting is measured first, in time linear in the body, and odd numbers and equal
keys are looked up when there is one.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.common.values import join_path, listed

MAX_NESTING = 64
"""Levels of lists and objects. Deeper JSON has no meaning in this protocol, not even in a tool's schema."""

MAX_CONTAINERS = 1 << 17
"""Lists and objects in one body. Millions of them fit into a few megabytes and take the parser seconds."""

MAX_COMMAS = 1 << 20
"""About the numbers and keys in one body. Eight million fit into the largest body, and hold the parser for a second."""

MAX_KEYS = 4096
"""Keys of one object. The longest object that is served, `logit_bias`, may have a quarter of them."""

QUICK_BYTES = 128 * 1024
QUICK_VALUES = 2048
"""A body within both is read and checked in a few milliseconds, whatever its shape."""

_SEARCHED_CHARACTERS = 1 << 20
"""In longer bodies an odd number is refused without its path: naming it is a courtesy that must not cost seconds."""

# All that comes before the next bracket, and the bracket. It cannot fail to match (a string may be open, the body may
# be at its end), else the search would start again at every byte; and nothing in it backtracks. So it is linear.
_TO_BRACKET = re.compile(rb'(?:[^\[\]{}"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+([\[\]{}]|\Z)', re.DOTALL)
_KEY_AT_END = re.compile(rb'(?<!\\)"([^"\\]{1,64})"\s*:\s*.\Z', re.DOTALL)


class _Odd:
    """Takes the place of a number or an object that the server refuses."""

    def __init__(self, problem: str, keys: Iterable[str] = (), code: str = "invalid_json") -> None:
        self.problem = problem
        self.code = code
        self.keys = list(keys)
        """Those at fault, of an object."""


class _OddObject(ValueError):
    """The first reading has met an object that cannot be taken."""

    def __init__(self, odd: _Odd) -> None:
        self.odd = odd


def is_quick(body: bytes) -> bool:
    """Whether an event loop may read this body itself. Other bodies may take seconds and gigabytes."""
    return len(body) <= QUICK_BYTES and body.count(b",") + body.count(b"[") + body.count(b"{") <= QUICK_VALUES


def read_object(body: bytes) -> dict[str, Any]:
    """The object that the body holds. Raises `RequestError`, always 400."""
    if body.count(b"[") + body.count(b"{") > MAX_NESTING:
        _check_shape(body)
    if body.count(b",") > MAX_COMMAS:
        raise invalid(f"The body has too many values to be read: over {MAX_COMMAS} commas.", code="too_many_values")
    try:
        text = body.decode("utf-8-sig")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _not_json(f"the byte at position {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise _odd_value(text, error) from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    return value


def _not_json(problem: str) -> RequestError:
    return invalid(f"The body is not valid JSON: {problem}.", code="invalid_json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _sound_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = _odd_or_object(pairs)
    if isinstance(value, _Odd):
        raise _OddObject(value)
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_sound_object)


# Numbers and objects


def _odd_constant(name: str) -> _Odd:
    return _Odd(f"{name} is not JSON")


def _odd_or_int(digits: str) -> int | _Odd:
    try:
        return int(digits)
    except ValueError:  # over the interpreter's limit, which keeps the conversion from taking quadratic time
        return _Odd(f"an integer of {len(digits)} digits is too long")


def _odd_or_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Odd:
    if len(pairs) > MAX_KEYS:
        return _Odd(f"an object may have at most {MAX_KEYS} keys, not {len(pairs)}", code="too_many_values")
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    return _Odd("", [key for key, n in Counter(key for key, _ in pairs).items() if n > 1])


_ODD_DECODER = json.JSONDecoder(parse_constant=_odd_constant, parse_int=_odd_or_int, object_pairs_hook=_odd_or_object)


def _odd_value(text: str, first: ValueError) -> RequestError:
    try:
        root = _ODD_DECODER.decode(text)
    except json.JSONDecodeError as error:
        return _not_json(f"{error.msg} at character {error.pos}")
    found = _find_odd(root, "") if len(text) <= _SEARCHED_CHARACTERS else None
    if found is not None:
        path, odd = found
    elif isinstance(first, _OddObject):
        path, odd = "", first.odd
    else:
        return _not_json("it has a number that is none (NaN, Infinity, or an integer that is too long)")
    if odd.keys:
        return invalid(
            f"Repeated in its object: {listed(odd.keys, path)}. A key may be there once.",
            join_path(path, odd.keys[0]),
            code="invalid_json",
        )
    path = path or "body"
    return invalid(f"`{path}`: {odd.problem}.", path, code=odd.code)


def _find_odd(value: Any, path: str) -> tuple[str, _Odd] | None:
    """The path of the first odd value, and what is wrong with it. Recursion is bounded by `MAX_NESTING`."""
    if isinstance(value, _Odd):
        return path, value
    items: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, _Odd | dict | list):
            found = _find_odd(item, join_path(path, key))
            if found:
                return found
    return None


# Shape


def _check_shape(body: bytes) -> None:
    """Refuses what would make the parser recurse or build too much, naming the top-level field."""
    depth = n_containers = 0
    field: re.Match[bytes] | None = None
    for match in _TO_BRACKET.finditer(body):
        if match[1] in (b"[", b"{"):
            field = match if depth == 1 else field
            depth += 1
            n_containers += 1
        else:
            depth -= 1
        if depth > MAX_NESTING:
            raise _misshapen(field, f"is nested deeper than {MAX_NESTING} levels", "nested_too_deeply")
        if n_containers > MAX_CONTAINERS:
            raise _misshapen(field, f"brings the lists and objects to more than {MAX_CONTAINERS}", "too_many_values")


def _misshapen(opening: re.Match[bytes] | None, problem: str, code: str) -> RequestError:
    key = opening and _KEY_AT_END.search(opening[0][-128:])
    if not key:
        return invalid(f"The body {problem}.", code=code)
    param = join_path("", key[1].decode("utf-8", "replace"))
    return invalid(f"`{param}` {problem}.", param, code=code)
