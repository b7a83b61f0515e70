"""The engine is told changes, and changes only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.stream.flow import Flow
from sluiceway.stream.lifecycle import Effect, ParkUpstream, PauseUpstream, ResumeUpstream
from sluiceway.stream.policy import Decision

FLOW, PAUSE, PARK = Decision.FLOW, Decision.PAUSE, Decision.PARK


def turned(*wanted: Decision) -> list[Effect]:
    flow = Flow()
    return [effect for one in wanted for effect in flow.turn(one, [1, 2], 0.0)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ((FLOW, FLOW), []),
        ((PAUSE, PAUSE, FLOW), [PauseUpstream((1, 2)), ResumeUpstream((1, 2))]),
        ((PAUSE, PARK, FLOW), [PauseUpstream((1, 2)), ParkUpstream((1, 2)), ResumeUpstream((1, 2))]),
        ((PARK, PARK, PAUSE, FLOW), [ParkUpstream((1, 2)), ResumeUpstream((1, 2))]),
    ],
)
def test_only_changes_are_told(wanted: tuple[Decision, ...], expected: list[Effect]) -> None:
    """Degrees one after the other, or at once; a parked one is not paused."""
    assert turned(*wanted) == expected


@settings(derandomize=True, max_examples=100)
@given(st.lists(st.sampled_from([FLOW, PAUSE, PARK]), max_size=12))
def test_resumptions_alternate_with_what_they_undo(wanted: list[Decision]) -> None:
    """No resumption of what flows, no second pause of what is held."""
    flows = True
    for effect in turned(*wanted):
        match effect:
            case ResumeUpstream():
                assert not flows
                flows = True
            case PauseUpstream():
                assert flows
                flows = False
            case ParkUpstream():
                flows = False


def test_what_nobody_reads_is_paused_when_it_is_ahead() -> None:
    """And parked when it was held for long, if the policy parks."""
    flow = Flow()
    assert flow.unattended(is_ahead=False, park_after_s=2.0, now_s=0.0) is FLOW
    assert flow.unattended(is_ahead=True, park_after_s=2.0, now_s=0.0) is PAUSE
    flow.turn(PAUSE, [1], 1.0)
    assert flow.unattended(is_ahead=False, park_after_s=2.0, now_s=2.9) is PAUSE
    assert flow.unattended(is_ahead=False, park_after_s=None, now_s=9.0) is PAUSE
    assert flow.unattended(is_ahead=False, park_after_s=2.0, now_s=3.0) is PARK
