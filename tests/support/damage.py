"""Damages a model's files, the same in every run: replaces values of JSON, and changes bytes."""

from __future__ import annotations

import random
import struct
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", "x",
    "yarn", "linear", "\x00", [], [1], [[]], {}, {"a": {}}, [None], ["sliding_attention", "full_attention"],
)  # fmt: skip


def changed_json(content: Any, draw: random.Random) -> Any:
    """Replaces or removes one value."""
    if isinstance(content, dict) and content and draw.random() < 0.85:
        key = draw.choice(sorted(content))
        if draw.random() < 0.15:
            return {name: value for name, value in content.items() if name != key}
        return content | {key: changed_json(content[key], draw)}
    if isinstance(content, list) and content and draw.random() < 0.7:
        place = draw.randrange(len(content))
        return [*content[:place], changed_json(content[place], draw), *content[place + 1 :]]
    return draw.choice(ODD_VALUES)


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """Sets, removes, inserts or cuts off bytes, mostly near the beginning, where lengths and counts are."""
    place = draw.randrange(min(len(content), draw.choice((16, 200, 3000, len(content)))))
    before, behind = content[:place], content[place:]
    match draw.randrange(5):
        case 0:
            return before + bytes([draw.randrange(256)]) + behind[1:]
        case 1:
            return (
                before + struct.pack("<Q", draw.choice((0, 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1))) + behind[8:]
            )
        case 2:
            return before + behind[draw.randrange(1, 200) :]
        case 3:
            return before + draw.randbytes(draw.randrange(1, 40)) + behind
        case _:
            return before
