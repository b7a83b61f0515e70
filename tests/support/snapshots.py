"""Snapshots of an engine, for tests that need one and care about a field or two."""

from __future__ import annotations

from typing import Any

from sluiceway.types import EngineStats


def engine_stats(**fields: Any) -> EngineStats:
    """An idle engine that has done nothing, but for the fields given."""
    return EngineStats(**(dict.fromkeys(EngineStats.__struct_fields__, 0) | fields))
