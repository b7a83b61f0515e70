"""Servers under measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluiceway_lab.load.client import Target
from sluiceway_lab.load.target_server import TargetServer

NOWHERE = Target("127.0.0.1", 1)
EXTRAS = {"ignore_eos": True, "stream_options": {"include_usage": True}}


def target_server(target: Target = NOWHERE, **fields: Any) -> TargetServer:
    """A server that understands all fields and publishes nothing, except for the given fields."""
    given: Mapping[str, Any] = {"name": "s", "model": "m", "kind": None, "version": None, "extras": EXTRAS} | fields
    return TargetServer(target=target, **given)
