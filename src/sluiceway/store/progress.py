"""What a download tells about itself while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec


class Progress(msgspec.Struct, frozen=True):
    """`done` of `total` bytes are on the disk, those of an earlier try that was interrupted included."""

    what: str
    done: int
    total: int


OnProgress: TypeAlias = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Tells nobody."""
