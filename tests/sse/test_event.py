"""The value of one event."""

from __future__ import annotations

import pytest

from sluiceway.errors import SluicewayError
from sluiceway.sse.event import ServerEvent, SSEError


def test_event_with_only_data_has_the_defaults_of_the_standard() -> None:
    assert ServerEvent("x") == ServerEvent(data="x", event="message", last_event_id="")


def test_sse_error_is_an_error_of_this_package() -> None:
    with pytest.raises(SluicewayError, match="too long"):
        raise SSEError("too long")
