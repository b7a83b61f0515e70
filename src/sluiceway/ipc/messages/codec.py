"""Encode any message; decode what one receiver may get, by its typed union."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()


encode: Callable[[msgspec.Struct], bytes] = _ENCODER.encode
"""Returns the bytes of a message."""


class Decoder(Generic[T]):
    """Decodes the messages of one receiver. `decode` raises `msgspec.DecodeError` for other bytes."""

    def __init__(self, union: Any) -> None:
        self.decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(union).decode
