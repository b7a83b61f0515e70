"""Reads the body of a request: a JSON object, and single values in it. A 400 says what is wrong, and in which field.

The parser of the standard library recurses, takes NaN and Infinity, lets the last of two equal keys win, and refuses
long integers in words about Python. So nesting is measured first, in time linear in the body, and odd numbers and equal
keys are looked up when there is one.
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
"""No vocabulary comes near; whether an id is in the model's own is checked where the vocabulary is known."""

_SHOWN_CHARACTERS = 64

MAX_NAMED = 10
"""How many of several mistakes are named; the rest are counted."""

MAX_COUNTED = 100
"""After this many mistakes in one field the check stops: an error costs as much as twenty values that are right."""

In = TypeVar("In")
Out = TypeVar("Out")


def shorten(value: object) -> str:
    """A value for an error message: as JSON, but short, printable, and never more than a word for lists and objects."""
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
    """A JSON string that can be logged: no control character, no half of a character."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def join_path(path: str, key: str | int) -> str:
    """One step down in a JSON path: `messages`, `messages[0]`, `messages[0].content`. Long names are cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = _printable(key[:_SHOWN_CHARACTERS])[1:-1]
    return f"{path}.{name}" if path else name


def listed(keys: Sequence[str], path: str = "") -> str:
    """Keys at `path` for a message: each by its whole path, or the first ones and how many more there are."""
    named = [f"`{join_path(path, key)}`" for key in keys[:MAX_NAMED]]
    if len(keys) > MAX_NAMED:
        named.append(f"{len(keys) - MAX_NAMED} more")
    *others, last = named
    return f"{', '.join(others)} and {last}" if others else last


def together(errors: Sequence[RequestError], n_errors: int | None = None) -> RequestError:
    """One error that names all of these, with the code and the field of the first. `n_errors`: how many there were."""
    first = errors[0].refusal
    n_more = (n_errors or len(errors)) - MAX_NAMED
    messages = [error.refusal.message for error in errors[:MAX_NAMED]]
    if n_more > 0:
        messages.append(f"There are {n_more} more mistakes of this kind.")
    return RequestError(msgspec.structs.replace(first, message=" ".join(messages)))


def lower_each(lower: Callable[[In], Out], items: Iterable[In]) -> tuple[Out, ...]:
    """`lower` of each item. Raises one `RequestError` that names those that are wrong, `MAX_COUNTED` at most."""
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
    """`param` must be `expected` and is not."""
    return invalid(f"`{param}` must be {expected}, not {shorten(value)}.", param)


def require_text(value: object, param: str) -> str:
    """Any string that can be written as UTF-8; NUL is a character like others, a lone surrogate is none."""
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
    """As `require_text`, but not empty."""
    text = require_text(value, param)
    if not text:
        raise wrong(text, param, "a string that is not empty")
    return text


def require_list(value: object, param: str, *, expected: str, max_items: int | None = None) -> list[object]:
    """A list within its cap; the size is checked before anyone looks at an item."""
    if not isinstance(value, list):
        raise wrong(value, param, expected)
    if max_items is not None and len(value) > max_items:
        raise invalid(f"`{param}` may have at most {max_items} entries, not {len(value)}.", param)
    return value


def require_token_ids(value: Sequence[object], param: str) -> tuple[int, ...]:
    """Integers from 0 to `MAX_TOKEN_ID`. The good case costs two passes in C, for prompts of a million ids."""
    if set(map(type, value)) <= {int}:
        ids: tuple[int, ...] = tuple(value)  # type: ignore[arg-type]
        if not ids or (min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID):
            return ids
    at = [i for i, item in enumerate(value) if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID]
    expected = f"a token id (an integer from 0 to {MAX_TOKEN_ID})"
    raise together([wrong(value[i], f"{param}[{i}]", expected) for i in at[:MAX_NAMED]], len(at))


def require_number(value: object, param: str, *, low: float, high: float) -> float:
    """A finite number in the closed range; booleans are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong(value, param, f"a number from {low:g} to {high:g}")
    return float(value)


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
