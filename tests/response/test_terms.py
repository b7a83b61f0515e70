"""Terms are checked when they are made."""

from __future__ import annotations

import math

import msgspec
import pytest

from sluiceway.errors import ConfigError
from sluiceway.response.terms import Retention, StreamTerms


def test_only_a_response_with_a_grace_time_may_be_left() -> None:
    """Leaving any other response cancels it."""
    assert not StreamTerms().may_return
    assert not StreamTerms(retention=Retention()).may_return
    assert StreamTerms(retention=Retention(grace_s=1.0)).may_return


def test_the_window_has_the_bounds_of_the_retention() -> None:
    assert Retention(max_bytes=7, max_events=3).window == (7, 3)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
@pytest.mark.parametrize("field", Retention.__struct_fields__)
def test_a_retention_out_of_range_is_refused(field: str, value: float) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError) as caught:
        msgspec.structs.replace(Retention(), **{field: value})
    assert caught.value.field == field


def test_a_keep_alive_out_of_range_is_refused() -> None:
    """0 turns it off."""
    assert StreamTerms(keep_alive_s=0).keep_alive_s == 0
    with pytest.raises(ConfigError, match="keep_alive_s: must be from 0 to 86400"):
        StreamTerms(keep_alive_s=86_401)
