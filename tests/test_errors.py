"""Errors carry what their receivers need, and form one tree."""

from __future__ import annotations

import pytest

from sluiceway import errors
from sluiceway.errors import ConfigError, Refusal, RequestError, SluicewayError, invalid


@pytest.mark.parametrize("name", ["ConfigError", "ModelSourceError", "RequestError", "PeerGone", "InvariantError"])
def test_every_error_is_under_the_root_and_in_the_drawing(name: str) -> None:
    """Who catches the root catches what this package raises on purpose."""
    assert issubclass(getattr(errors, name), SluicewayError)
    assert errors.__doc__ is not None and name in errors.__doc__


def test_a_wrong_setting_is_named() -> None:
    """As a field, and in the message."""
    error = ConfigError("port", "must be from 0 to 65535, not -1")
    assert error.field == "port"
    assert str(error) == "port: must be from 0 to 65535, not -1"


def test_a_refused_request_says_how_to_answer() -> None:
    """The whole refusal travels with it; a log line shows its message."""
    refusal = Refusal(status=503, code="overloaded", message="Come again.", retry_after_s=1.0)
    error = RequestError(refusal)
    assert error.refusal is refusal and str(error) == "Come again."


def test_bad_input_is_a_400_unless_told_otherwise() -> None:
    """The short form for what schemas raise."""
    assert invalid("No.").refusal == Refusal(status=400, code="invalid_value", message="No.", param=None)
    assert invalid("No.", "n", code="too_many", status=422).refusal == Refusal(
        status=422, code="too_many", message="No.", param="n"
    )
