"""Reads typed settings of a model file: a value of a wrong type is an error that names the key."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from sluiceway.errors import ModelConfigError

_SHOWN_CHARS = 100
_LARGEST = sys.float_info.max


def shown(value: Any) -> str:
    """The value for an error message, on one short line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


class Fields:
    """Settings of a file, which `where` names in errors. A key that is null counts as absent."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def keys(self) -> Iterable[str]:
        return self._values.keys()

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, f"must be a whole number, not {shown(value)}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
            raise self.wrong(key, f"must be a finite number, not {shown(value)}")
        return float(value)

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"must be true or false, not {shown(value)}")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, f"must be text, not {shown(value)}")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """One integer or a list of them; empty if the key is absent."""
        value = self._values.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            raise self.wrong(key, f"must be a whole number or a list of them, not {shown(value)}")
        return tuple(items)

    def wrong(self, key: str, message: str) -> ModelConfigError:
        return ModelConfigError(f"{self._where}: {key}", message)

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.wrong(key, "is missing")
        return default
