"""The value of one event."""

from __future__ import annotations

import pytest

from sluiceway.errors import SluicewayError
from sluiceway.sse.event import ServerEvent, SSEError


def test_event_has_the_defaults_of_the_standard_when_only_data_is_given() -> None:
    """An event without a name is a message."""
    assert ServerEvent("x") == ServerEvent(data="x", event="message", last_event_id="")


def test_error_is_caught_as_ours_when_raised() -> None:
    """It is one of the errors of this package."""
    with pytest.raises(SluicewayError, match="too long"):
        raise SSEError("too long")
