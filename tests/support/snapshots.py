"""Snapshots of an engine, for tests that use only a few fields."""

from __future__ import annotations

from typing import Any

from sluiceway.types import EngineStats


def engine_stats(**fields: Any) -> EngineStats:
    """An idle engine that has done nothing, except for the given fields."""
    return EngineStats(**(dict.fromkeys(EngineStats.__struct_fields__, 0) | fields))
