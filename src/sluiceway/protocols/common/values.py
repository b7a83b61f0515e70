"""Single values of a request: checked with the path of the field at fault, and shortened for a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

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
