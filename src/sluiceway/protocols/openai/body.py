"""From the raw body of a request to a JSON object, or a 400 that says what is wrong and, where it can, in which field.

The parser of the standard library recurses, takes NaN and Infinity, and refuses long integers in words about
Python. So nesting is measured first, in time linear in the body, and odd numbers are looked up when there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.openai.values import join_path

MAX_NESTING = 64
"""Levels of lists and objects. Deeper JSON has no meaning in this protocol, not even in a tool's schema."""

MAX_CONTAINERS = 1 << 17
"""Lists and objects in one body. Millions of them fit into a few megabytes and take the parser seconds."""

MAX_COMMAS = 1 << 20
"""About the numbers and keys in one body. Eight million fit into the largest body, and hold the parser for a second."""

_SEARCHED_CHARACTERS = 1 << 20
"""In longer bodies an odd number is refused without its path: naming it is a courtesy that must not cost seconds."""

# All that comes before the next bracket, and the bracket. It cannot fail to match (a string may be open, the body may
# be at its end), else the search would start again at every byte; and nothing in it backtracks. So it is linear.
_TO_BRACKET = re.compile(rb'(?:[^\[\]{}"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))*+([\[\]{}]|\Z)', re.DOTALL)
_KEY_AT_END = re.compile(rb'(?<!\\)"([^"\\]{1,64})"\s*:\s*.\Z', re.DOTALL)


class _OddNumber:
    """Stands where the body has a number that cannot be taken."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


def read_object(body: bytes) -> dict[str, Any]:
    """The object that the body holds. Raises `RequestError`, always 400."""
    if body.count(b"[") + body.count(b"{") > MAX_NESTING:
        _check_shape(body)
    if body.count(b",") > MAX_COMMAS:
        raise invalid(
            f"The body has more values than are read at once: over {MAX_COMMAS} commas.", code="too_many_values"
        )
    try:
        text = body.decode("utf-8-sig")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise _not_json(f"the byte at position {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _not_json(f"{error.msg} at character {error.pos}") from None
    except ValueError:
        raise _odd_number(text) from None
    if not isinstance(value, dict):
        raise invalid("The body must be a JSON object.", code="invalid_json")
    return value


def _not_json(problem: str) -> RequestError:
    return invalid(f"The body is not valid JSON: {problem}.", code="invalid_json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


# Numbers


def _odd_constant(name: str) -> _OddNumber:
    return _OddNumber(f"{name} is not JSON")


def _odd_or_int(digits: str) -> int | _OddNumber:
    try:
        return int(digits)
    except ValueError:  # over the interpreter's limit, which keeps the conversion from taking quadratic time
        return _OddNumber(f"an integer of {len(digits)} digits is too long")


_ODD_DECODER = json.JSONDecoder(parse_constant=_odd_constant, parse_int=_odd_or_int)


def _odd_number(text: str) -> RequestError:
    try:
        root = _ODD_DECODER.decode(text)
    except json.JSONDecodeError as error:
        return _not_json(f"{error.msg} at character {error.pos}")
    found = _find_odd(root, "") if len(text) <= _SEARCHED_CHARACTERS else None
    if found is None:
        return _not_json("it has a number that is none (NaN, Infinity, or an integer that is too long)")
    path, problem = found
    return invalid(f"`{path}`: {problem}.", path, code="invalid_json")


def _find_odd(value: Any, path: str) -> tuple[str, str] | None:
    """The path of the first odd number, and what is wrong with it. Recursion is bounded by `MAX_NESTING`."""
    if isinstance(value, _OddNumber):
        return path or "body", value.problem
    items: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        if isinstance(item, _OddNumber | dict | list):
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
