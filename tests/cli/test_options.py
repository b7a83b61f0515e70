"""Shared flags."""

from __future__ import annotations

import pytest
import typer

from sluiceway.cli.options import finite, share, variable_of


def test_variable_has_the_flags_name() -> None:
    """One rule for all."""
    assert variable_of("--max-step-tokens") == "SLUICEWAY_MAX_STEP_TOKENS"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_number_is_refused_when_it_is_not_finite(value: float) -> None:
    """These pass through a range check."""
    with pytest.raises(typer.BadParameter, match="finite"):
        finite(value)


def test_number_is_passed_on_when_it_is_finite() -> None:
    """Unchanged."""
    assert finite(0.5) == 0.5


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_share_is_refused_when_it_is_nothing(value: float) -> None:
    """A server refuses it too, so the same flag means the same with and without one."""
    with pytest.raises(typer.BadParameter, match="above 0|finite"):
        share(value)


def test_share_is_passed_on_when_it_is_above_nothing() -> None:
    """Unchanged."""
    assert share(0.01) == 0.01
