"""Commands set up the log of their process; a test's process has more to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)
