"""Encode any message; decode what one receiver may get, by its typed union."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


class Decoder(Generic[T]):
    """Decodes the messages of one receiver. Raises `msgspec.DecodeError` for anything else."""

    def __init__(self, union: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)

    def decode(self, raw: bytes) -> T:
        return self._decoder.decode(raw)
