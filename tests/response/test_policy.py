"""What a policy decides about a reader, and which policies are valid."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import ConfigError
from sluiceway.response.policy import (
    DEFAULT,
    MAX_AMOUNT,
    POLICIES,
    Decision,
    Measure,
    Policy,
    PolicyName,
    Pressure,
    decide,
    is_behind,
    spare,
)
from support.mirror import ROOT

NEAR = Measure(queued_bytes=0, queued_events=0, unsent_bytes=0, stalled_s=0.0, behind_s=None)
MARKS: dict[str, Any] = {
    "low_bytes": 10,
    "high_bytes": 20,
    "limit_bytes": 40,
    "low_events": 1,
    "high_events": 4,
    "limit_events": 6,
}
PAUSE = Policy(name=PolicyName.PAUSE, **MARKS, stall_timeout_s=9.0)
DROP = Policy(name=PolicyName.DROP, **MARKS, drop_after_s=3.0, stall_timeout_s=9.0)
BY_DEGREES = Policy(name=PolicyName.PAUSE_PARK_DROP, **MARKS, park_after_s=2.0, drop_after_s=5.0, stall_timeout_s=9.0)
UNBOUNDED = POLICIES[PolicyName.UNBOUNDED]
BEHIND = NEAR._replace(queued_bytes=15, behind_s=0.0)


def test_pause_park_drop_is_the_default_policy() -> None:
    """The documentation says so, and every policy has its default values."""
    assert DEFAULT.name is PolicyName.PAUSE_PARK_DROP
    assert [POLICIES[name].name for name in PolicyName] == list(PolicyName)


def test_decisions_are_ordered_from_mild_to_severe() -> None:
    assert [decision.name for decision in sorted(Decision)] == ["RUN", "PAUSE", "PARK", "DROP"]


def test_a_reader_stays_behind_until_its_events_are_at_the_low_mark_of_the_policy() -> None:
    waits = NEAR._replace(behind_s=0.0)
    assert [is_behind(DROP, waits._replace(queued_events=n)) for n in (1, 2)] == [False, True]
    assert [is_behind(UNBOUNDED, waits._replace(queued_events=n)) for n in (32, 33)] == [False, True]


def test_marks_and_times_may_be_0() -> None:
    nothing = dict.fromkeys(MARKS, 0)
    policy = Policy(name=PolicyName.DROP, **nothing, drop_after_s=0.0, stall_timeout_s=0.0)
    assert (policy.low_bytes, policy.limit_events, policy.drop_after_s) == (0, 0, 0.0)


def test_the_page_has_the_default_values() -> None:
    """It has the marks and the times of the code."""
    page = (ROOT / "docs" / "slow-clients.md").read_text()
    for policy in POLICIES.values():
        times = (policy.park_after_s, policy.drop_after_s, policy.stall_timeout_s)
        cells = ["yes" if policy.pauses else "", *("" if time is None else f"{time:g}" for time in times)]
        row = f"| `{policy.name.value}` " + "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
        assert row in page
    for row in ("low", "high", "limit"):
        n_bytes, n_events = getattr(DEFAULT, f"{row}_bytes"), getattr(DEFAULT, f"{row}_events")
        size = f"{n_bytes >> 10} KiB" if n_bytes < 1 << 20 else f"{n_bytes >> 20} MiB"
        assert re.search(rf"^\| {row}: .* \| {size} \| {n_events} \|$", page, re.MULTILINE), row


@pytest.mark.parametrize(
    ("queued_bytes", "unsent_bytes", "queued_events", "expected"),
    [(20, 0, 4, False), (21, 0, 3, True), (1, 20, 3, True), (0, 0, 5, True), (21, 20, 2, False), (0, 41, 0, False)],
)
def test_a_reader_falls_behind_above_a_high_mark(
    queued_bytes: int, unsent_bytes: int, queued_events: int, expected: bool
) -> None:
    """In bytes, wherever they wait, or in events. Neither the mark itself nor two large events are too much."""
    measure = NEAR._replace(queued_bytes=queued_bytes, unsent_bytes=unsent_bytes, queued_events=queued_events)
    assert is_behind(PAUSE, measure) is expected
    assert decide(PAUSE, measure) is (Decision.PAUSE if expected else Decision.RUN)


def test_a_reader_stays_behind_until_it_is_at_the_low_mark() -> None:
    """Between the two marks nothing changes."""
    between = NEAR._replace(queued_bytes=15)
    assert decide(PAUSE, between) is Decision.RUN
    assert decide(PAUSE, between._replace(behind_s=0.0)) is Decision.PAUSE
    assert decide(PAUSE, between._replace(queued_bytes=10, behind_s=0.0)) is Decision.RUN


def test_the_low_mark_counts_when_memory_is_short() -> None:
    """A policy that pauses then pauses the generation, and any other policy drops the reader."""
    between = NEAR._replace(queued_bytes=15, pressure=Pressure.TIGHT)
    assert decide(PAUSE, between) is Decision.PAUSE
    assert decide(DROP, between) is Decision.DROP
    assert decide(DROP, between._replace(queued_bytes=10)) is Decision.RUN


def test_readers_above_the_low_mark_are_dropped_when_memory_is_full() -> None:
    """A pause would not free memory. Readers with little in their backlog stay."""
    between = NEAR._replace(queued_bytes=15, pressure=Pressure.FULL)
    assert decide(PAUSE, between) is decide(DROP, between) is Decision.DROP
    assert decide(PAUSE, between._replace(queued_bytes=10)) is Decision.RUN


def test_a_policy_without_marks_is_bounded_when_memory_is_short() -> None:
    """`unbounded` means: as far as the memory of the server allows."""
    much = NEAR._replace(queued_bytes=1 << 30, queued_events=1 << 20)
    assert decide(UNBOUNDED, much) is Decision.RUN
    assert decide(UNBOUNDED, much._replace(pressure=Pressure.TIGHT)) is Decision.DROP


@pytest.mark.parametrize(
    ("policy", "behind_s", "expected"),
    [
        (BY_DEGREES, 1.9, Decision.PAUSE),
        (BY_DEGREES, 2.0, Decision.PARK),
        (BY_DEGREES, 5.0, Decision.DROP),
        (PAUSE, 1e6, Decision.PAUSE),
        (DROP, 2.9, Decision.RUN),
        (DROP, 3.0, Decision.DROP),
    ],
)
def test_the_decision_grows_with_the_time_that_a_reader_is_behind(
    policy: Policy, behind_s: float, expected: Decision
) -> None:
    """Each policy has its own thresholds."""
    assert decide(policy, BEHIND._replace(behind_s=behind_s)) is expected


@pytest.mark.parametrize("policy", [PAUSE, DROP, BY_DEGREES, UNBOUNDED])
def test_a_reader_is_dropped_when_it_takes_nothing_for_too_long(policy: Policy) -> None:
    """It does not matter how little waits for it."""
    assert policy.stall_timeout_s is not None
    assert decide(policy, NEAR._replace(queued_events=1, stalled_s=policy.stall_timeout_s)) is Decision.RUN
    assert decide(policy, NEAR._replace(queued_events=1, stalled_s=policy.stall_timeout_s + 1)) is Decision.DROP


@pytest.mark.parametrize("policy", [PAUSE, DROP, BY_DEGREES])
@pytest.mark.parametrize("much", [{"queued_bytes": 41, "queued_events": 3}, {"queued_events": 7}])
def test_a_reader_is_dropped_above_the_limit(policy: Policy, much: dict[str, Any]) -> None:
    """It is dropped immediately, so that the bound holds."""
    assert decide(policy, NEAR._replace(**much)) is Decision.DROP


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 6))
def test_a_reader_falls_behind_right_after_its_spare_amount(queued: int, unsent: int, events: int) -> None:
    """One more event or one more byte is too much. With a few large events, the next event decides."""
    measure = NEAR._replace(queued_bytes=queued, unsent_bytes=unsent, queued_events=events)
    spare_bytes, spare_events = spare(PAUSE, measure)
    assert is_behind(PAUSE, measure) is (spare_bytes < 0)
    if spare_bytes < 0:
        return
    full = measure._replace(queued_bytes=queued + spare_bytes, queued_events=events + spare_events)
    assert is_behind(PAUSE, full._replace(queued_bytes=full.queued_bytes + 1))
    assert is_behind(PAUSE, full._replace(queued_events=full.queued_events + 1))
    assert is_behind(PAUSE, full) is (queued + unsent > 20)


def test_two_large_events_are_too_much_only_when_memory_is_short() -> None:
    large = NEAR._replace(queued_bytes=1 << 30, queued_events=2)
    assert decide(PAUSE, large) is decide(DROP, large) is Decision.RUN
    assert decide(PAUSE, large._replace(pressure=Pressure.TIGHT)) is Decision.PAUSE
    assert decide(PAUSE, large._replace(pressure=Pressure.FULL)) is Decision.DROP


def test_everything_is_spare_without_marks() -> None:
    assert spare(UNBOUNDED, NEAR) == (MAX_AMOUNT, MAX_AMOUNT)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    st.sampled_from([PAUSE, DROP, BY_DEGREES]),
    st.builds(
        Measure,
        queued_bytes=st.integers(0, 50),
        queued_events=st.integers(0, 8),
        unsent_bytes=st.integers(0, 50),
        stalled_s=st.floats(0, 12),
        behind_s=st.none() | st.floats(0, 7),
        pressure=st.sampled_from(Pressure),
    ),
    st.sampled_from(["queued_bytes", "queued_events", "unsent_bytes", "stalled_s", "behind_s"]),
    st.integers(1, 50),
)
def test_a_slower_reader_never_gets_a_milder_decision(policy: Policy, measure: Measure, field: str, more: int) -> None:
    """The decision grows with every measured value."""
    change: dict[str, Any] = {field: (getattr(measure, field) or 0) + more}
    assert decide(policy, measure._replace(**change)) >= decide(policy, measure)


FIELDS_OF = {name: {f for f, v in msgspec.structs.asdict(POLICIES[name]).items() if v is not None} for name in POLICIES}


@pytest.mark.parametrize(("name", "field"), list(itertools.product(PolicyName, DEFAULT.__struct_fields__[1:])))
def test_a_policy_has_exactly_the_fields_that_it_uses(name: PolicyName, field: str) -> None:
    """A field that would be ignored is refused, and the error names it."""
    wrong = None if field in FIELDS_OF[name] else 1
    with pytest.raises(ConfigError) as caught:
        msgspec.structs.replace(POLICIES[name], **{field: wrong})
    assert caught.value.field == field
    assert name.value in str(caught.value)


@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 1 << 41])
@pytest.mark.parametrize("field", ["limit_bytes", "stall_timeout_s"])
def test_a_number_out_of_range_is_refused(field: str, value: float) -> None:
    """Times are at most a day, and amounts at most what memory can hold."""
    with pytest.raises(ConfigError, match=f"{field}: must be from 0"):
        msgspec.structs.replace(PAUSE, **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "above"),
    [
        ("low_bytes", 21, "high_bytes"),
        ("high_bytes", 41, "limit_bytes"),
        ("low_events", 5, "high_events"),
        ("high_events", 7, "limit_events"),
        ("park_after_s", 6.0, "drop_after_s"),
    ],
)
def test_marks_and_times_are_refused_out_of_order(field: str, value: float, above: str) -> None:
    """A reader cannot be parked after it was dropped."""
    with pytest.raises(ConfigError, match=f"{field}: must be at most {above}"):
        msgspec.structs.replace(BY_DEGREES, **{field: value})


def test_policies_without_marks_have_a_low_mark_too() -> None:
    """A smaller backlog never counts as slow."""
    assert POLICIES[PolicyName.UNBOUNDED].low_mark_bytes == POLICIES[PolicyName.PAUSE].low_mark_bytes == 8 * 1024
