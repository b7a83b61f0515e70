"""Reads the body of a request: a JSON object, and single values in it. A 400 says what is wrong, and in which field.

The parser of the standard library recurses, accepts NaN and Infinity, keeps the last of two equal keys, and refuses
long integers with a message about Python. So nesting is measured first, in a time that is linear in the body. If there
is a wrong number or a repeated key, the body is parsed once more to find its path.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import msgspec

from sluiceway.errors import RequestError, invalid

MAX_TOKEN_ID = (1 << 31) - 1
"""More than any vocabulary has. The engine checks whether an id is in the vocabulary of the model."""

_SHOWN_CHARACTERS = 64

MAX_NAMED = 10
"""How many of several mistakes are named; the rest are counted."""

MAX_COUNTED = 100
"""After this many mistakes in one field the check stops: an error costs as much as twenty valid values."""

In = TypeVar("In")
Out = TypeVar("Out")


def shorten(value: object) -> str:
    """A value for an error message: short and printable JSON; a list or an object is only named."""
    match value:
        case str():
            cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
            return _printable(cut)
        case dict():
            return "an object"
        case list():
            return f"a list of {len(value)}"
        case int() | float() | None:
            text = json.dumps(value)
            return text if len(text) <= _SHOWN_CHARACTERS else f"a number of {len(text)} characters"
        case _:
            return f"a {type(value).__name__}"


def _printable(text: str) -> str:
    """A JSON string without control characters and without halves of characters, for logs."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def join_path(path: str, key: str | int) -> str:
    """Append a key to a JSON path: `messages`, `messages[0]`, `messages[0].content`. Long names are cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = _printable(key[:_SHOWN_CHARACTERS])[1:-1]
    return f"{path}.{name}" if path else name


def listed(keys: Sequence[str], path: str = "") -> str:
    """A list of keys for a message, each with its whole path; of many, the first ones and the number of the others."""
    named = [f"`{join_path(path, key)}`" for key in keys[:MAX_NAMED]]
    if len(keys) > MAX_NAMED:
        named.append(f"{len(keys) - MAX_NAMED} more")
    *others, last = named
    return f"{', '.join(others)} and {last}" if others else last


def together(errors: Sequence[RequestError], n_errors: int | None = None) -> RequestError:
    """Join errors: the message names all, the code and the field are those of the first. `n_errors`: their number."""
    first = errors[0].refusal
    n_more = (n_errors or len(errors)) - MAX_NAMED
    messages = [error.refusal.message for error in errors[:MAX_NAMED]]
    if n_more > 0:
        messages.append(f"There are {n_more} more mistakes of this kind.")
    return RequestError(msgspec.structs.replace(first, message=" ".join(messages)))


def lower_each(lower: Callable[[In], Out], items: Iterable[In]) -> tuple[Out, ...]:
    """Call `lower` with each item. Raises one `RequestError` for the items that are wrong, `MAX_COUNTED` at most."""
    lowered: list[Out] = []
    errors: list[RequestError] = []
    for item in items:
        try:
            lowered.append(lower(item))
        except RequestError as error:
            errors.append(error)
            if len(errors) == MAX_COUNTED:
                break
    if errors:
        raise together(errors)
    return tuple(lowered)


def wrong(value: object, param: str, expected: str) -> RequestError:
    """The error for a value that is not what it must be."""
    return invalid(f"`{param}` must be {expected}, not {shorten(value)}.", param)


def require_text(value: object, param: str) -> str:
    """Check that the value is a string that UTF-8 can encode: NUL is allowed, a lone surrogate is not."""
    if not isinstance(value, str):
        raise wrong(value, param, "a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise invalid(
                f"`{param}` has a lone surrogate at character {error.start}, which is no text.", param
            ) from None
    return value


def require_filled_text(value: object, param: str) -> str:
    """Check that the value is a text, and not empty."""
    text = require_text(value, param)
    if not text:
        raise wrong(text, param, "a string that is not empty")
    return text


def require_list(value: object, param: str, *, expected: str, max_items: int | None = None) -> list[object]:
    """Check that the value is a list of at most `max_items`, before any item is checked."""
    if not isinstance(value, list):
        raise wrong(value, param, expected)
    if max_items is not None and len(value) > max_items:
        raise invalid(f"`{param}` may have at most {max_items} entries, not {len(value)}.", param)
    return value


def require_token_ids(value: Sequence[object], param: str) -> tuple[int, ...]:
    """Check integers from 0 to `MAX_TOKEN_ID`. Valid ids cost two passes in C, since a prompt may have a million."""
    if set(map(type, value)) <= {int}:
        ids: tuple[int, ...] = tuple(value)  # type: ignore[arg-type]
        if not ids or (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
            return ids
    at = [i for i, item in enumerate(value) if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID]
    expected = f"a token id (an integer from 0 to {MAX_TOKEN_ID})"
    raise together([wrong(value[i], f"{param}[{i}]", expected) for i in at[:MAX_NAMED]], len(at))


def require_number(value: object, param: str, *, low: float, high: float) -> float:
    """Check that the value is a finite number from `low` to `high`, and not a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong(value, param, f"a number from {low:g} to {high:g}")
    return float(value)


MAX_NESTING = 64
"""Most levels of lists and objects. No field needs more."""

MAX_CONTAINERS = 1 << 17
"""Most lists and objects in one body. Millions of them fit into a few megabytes and take the parser seconds."""

MAX_COMMAS = 1 << 20
"""Most commas, so about the most values, in one body. Eight million fit into the largest body, and take a second."""

MAX_KEYS = 4096
"""Most keys of one object. The largest object that is served, `logit_bias`, may have a quarter of them."""

QUICK_BYTES = 128 * 1024
QUICK_VALUES = 2048
"""A body within both is read and checked in a few milliseconds, whatever its shape."""

_SEARCHED_CHARACTERS = 1 << 20
"""In longer bodies a wrong number is refused without its path, since the search would take seconds."""

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
        """The repeated keys, if it takes the place of an object."""


class _OddObject(ValueError):
    """The first parse has found an object that the server refuses."""

    def __init__(self, odd: _Odd) -> None:
        self.odd = odd


def is_quick(body: bytes) -> bool:
    """True when an event loop may read this body itself. Other bodies may take seconds and gigabytes."""
    return len(body) <= QUICK_BYTES and body.count(b",") + body.count(b"[") + body.count(b"{") <= QUICK_VALUES


def read_object(body: bytes) -> dict[str, Any]:
    """Parse the body, which must be a JSON object. Raises `RequestError`, always 400."""
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
    """Find the first refused value: its path, and what is wrong. `MAX_NESTING` bounds the recursion."""
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
    """Refuse a body that would make the parser recurse or build too much, and name the top-level field."""
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
