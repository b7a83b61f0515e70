"""The policy that a request chooses for its own slow readers: a name, an object with thresholds, or a header.

Three forms of the same choice::

    {"sluiceway": {"slow_client": "drop"}}
    {"sluiceway": {"slow_client": {"policy": "pause-park-drop", "park_after_s": 1, "drop_after_s": 10}}}
    Sluiceway-Slow-Client: pause-park-drop; park_after_s=1; drop_after_s=10

An object without `policy` changes the thresholds of the server's own policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sluiceway.errors import ConfigError, RequestError, invalid
from sluiceway.response.policy import POLICIES, Policy, PolicyName

FIELD = "sluiceway.slow_client"
HEADER = "Sluiceway-Slow-Client"

_SERVED = tuple(name.value for name in PolicyName)
_MAX_NAMED = 10
_INTEGERS = frozenset(field for field in Policy.__struct_fields__ if field.endswith(("_bytes", "_events")))
_NUMBERS = frozenset(field for field in Policy.__struct_fields__ if field.endswith("_s"))


def policy_from_json(value: object, default: Policy, param: str = FIELD) -> Policy:
    """The policy of a request; `default` is the policy of the server. Raises a `RequestError` that names the field."""
    if value is None:
        return default
    if isinstance(value, str):
        value = {"policy": value}
    if not isinstance(value, Mapping):
        raise invalid(f"`{param}` must be the name of a policy or an object.", param)
    given = {key: number for key, number in value.items() if key != "policy" and number is not None}
    unknown = [f"`{param}.{key[:64]}`" for key in given if key not in _INTEGERS | _NUMBERS]
    if unknown:
        named = ", ".join(unknown[:_MAX_NAMED]) + (
            f" and {len(unknown) - _MAX_NAMED} more" if unknown[_MAX_NAMED:] else ""
        )
        are = "is no threshold" if len(unknown) == 1 else "are no thresholds"
        raise invalid(f"{named} {are} of a policy.", unknown[0].strip("`"))
    thresholds = {key: _checked(key, number, param) for key, number in given.items()}
    base = _base(value.get("policy"), default, param)
    try:
        return msgspec.structs.replace(base, **thresholds)
    except ConfigError as error:
        raise invalid(f"`{param}.{error.field}` {str(error).partition(': ')[2]}.", f"{param}.{error.field}") from None


def policy_from_header(value: str, default: Policy, param: str = HEADER) -> Policy:
    """The same from a header: first the policy, then thresholds as `name=number`, each at most once."""
    first, *pairs = (part.strip() for part in value.split(";"))
    fields: dict[str, Any] = {"policy": first}
    for pair in pairs:
        name, _, digits = pair.partition("=")
        name = name.strip()
        path = f"{param}.{name[:64]}"
        if name in fields:
            raise invalid(f"`{path}` is given more than once.", path)
        fields[name] = _number(digits.strip(), path)
    return policy_from_json(fields, default, param)


def _base(name: object, default: Policy, param: str) -> Policy:
    """The values of the server for its own policy; the defaults of any other policy."""
    if name is None or name == default.name.value:
        return default
    if not isinstance(name, str) or name not in _SERVED:
        raise invalid(f"`{param}` must name one of the policies {', '.join(_SERVED)}.", param)
    return POLICIES[PolicyName(name)]


def _checked(key: str, number: object, param: str) -> int | float:
    path = f"{param}.{key[:64]}"
    if isinstance(number, bool) or not isinstance(number, int if key in _INTEGERS else int | float):
        raise invalid(f"`{path}` must be {'an integer' if key in _INTEGERS else 'a number'}.", path)
    return number


def _number(digits: str, path: str) -> int | float:
    try:
        return int(digits) if digits.isascii() and digits.isdigit() else float(digits)
    except ValueError:
        raise _not_a_number(path) from None


def _not_a_number(path: str) -> RequestError:
    return invalid(f"`{path}` must be a number.", path)
