"""What the server does about a reader that does not keep up: a frozen policy, and the decision that follows from it.

====================  ================================================================================================
unbounded             events are kept in memory, up to the token limit of the request
pause                 the sequences are left out of the engine's batches; they keep their blocks and slots
drop                  the response is ended with `slow_client`
pause-park-drop       the sequences are paused; after a while they are parked, so that others get their blocks and
                      slots (what was computed is computed again, exactly); after a longer while they are dropped
====================  ================================================================================================

A reader falls *behind* when more waits for it than the high-water mark, and stays behind until no more than the
low-water mark waits. There are two marks so that a reader near one of them does not pause the engine with every token.
Comparisons are `>` against a mark, so that a mark of 0 works. A mark in bytes counts only when more than two events
wait, however large they are. A reader is *stalled* while something waits for it and it takes nothing.

What this file does not know: who measures readers, and who carries a decision out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.ranges import MARK, MARK_S, Range

MAX_AMOUNT = int(MARK.high)


class PolicyName(str, enum.Enum):
    """The policies of the table above."""

    UNBOUNDED = "unbounded"
    PAUSE = "pause"
    DROP = "drop"
    PAUSE_PARK_DROP = "pause-park-drop"


class Decision(enum.IntEnum):
    """What happens to the sequences, from mild to severe. Of several readers, the mildest decision counts."""

    RUN = 0
    PAUSE = 1
    PARK = 2
    DROP = 3


class Pressure(enum.IntEnum):
    """How near all streams together are to the memory that they may hold."""

    NONE = 0
    TIGHT = 1
    """Streams above their low-water marks must not grow."""
    FULL = 2
    """Streams above their low-water marks must shrink."""


class Measure(NamedTuple):
    """How far behind one reader is. Queued: not yet given to the transport. Unsent: the transport still holds it."""

    queued_bytes: int
    queued_events: int
    unsent_bytes: int
    stalled_s: float
    """Seconds since the reader took something, while something waits for it; else 0."""
    behind_s: float | None
    """Seconds since it fell behind; None if it was not behind when it was measured last."""
    pressure: Pressure = Pressure.NONE


_MARKS = ("low_bytes", "high_bytes", "limit_bytes", "low_events", "high_events", "limit_events")
_TIMES = ("park_after_s", "drop_after_s", "stall_timeout_s")
_MEANINGS: Mapping[PolicyName, frozenset[str]] = MappingProxyType(
    {
        PolicyName.UNBOUNDED: frozenset({"stall_timeout_s"}),
        PolicyName.PAUSE: frozenset({*_MARKS, "stall_timeout_s"}),
        PolicyName.DROP: frozenset({*_MARKS, "drop_after_s", "stall_timeout_s"}),
        PolicyName.PAUSE_PARK_DROP: frozenset({*_MARKS, *_TIMES}),
    }
)
"""The fields of each policy: all of them must be set, and no others."""

_LOW_BYTES, _LOW_EVENTS = 8 * 1024, 32
"""Backlog below these sizes never counts as slow, even under memory pressure. Policies without marks use them too."""

_FEW_EVENTS = 2
"""This many events may wait, whatever their size: one to be written now, and one that came while the reader took the
one before. If they counted, large events would pause the engine after each step, however fast the reader is."""


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy for slow readers. Its marks count per reader; above the limit a reader is dropped immediately.

    `park_after_s` and `drop_after_s` count from when the reader fell behind. `stall_timeout_s` is for a reader that
    takes nothing at all, even when little waits for it. Raises `ConfigError` for a field that is out of range, that is
    missing, or that the policy does not have.
    """

    name: PolicyName
    low_bytes: int | None = None
    high_bytes: int | None = None
    limit_bytes: int | None = None
    low_events: int | None = None
    high_events: int | None = None
    limit_events: int | None = None
    park_after_s: float | None = None
    drop_after_s: float | None = None
    stall_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for field in _MARKS + _TIMES:
            self._check(field, MARK_S if field in _TIMES else MARK)
        for low, high in (*zip(_MARKS, _MARKS[1:], strict=False), ("park_after_s", "drop_after_s")):
            self._check_order(low, high)

    @property
    def pauses(self) -> bool:
        """True when a reader that is behind pauses the generation."""
        return self.name in (PolicyName.PAUSE, PolicyName.PAUSE_PARK_DROP)

    @property
    def low_mark_bytes(self) -> int:
        """Backlog up to this size never counts as slow, even under memory pressure."""
        return _LOW_BYTES if self.low_bytes is None else self.low_bytes

    def _check(self, field: str, bounds: Range) -> None:
        value = getattr(self, field)
        if field not in _MEANINGS[self.name]:
            if value is not None:
                raise ConfigError(field, f"means nothing in the policy {self.name.value}")
        elif value is None:
            raise ConfigError(field, f"must be given for the policy {self.name.value}")
        elif not bounds.holds(value):
            raise ConfigError(field, f"must be {bounds}")

    def _check_order(self, low: str, high: str) -> None:
        below, above = getattr(self, low), getattr(self, high)
        if low.rpartition("_")[2] == high.rpartition("_")[2] and None not in (below, above) and below > above:
            raise ConfigError(low, f"must be at most {high} ({above}), not {below}")


_BOUNDED = {
    "low_bytes": _LOW_BYTES,
    "high_bytes": 32 * 1024,
    "limit_bytes": 1024 * 1024,
    "low_events": _LOW_EVENTS,
    "high_events": 128,
    "limit_events": 8192,
}
# The high-water mark is a second or two of an ordinary stream: longer than a short interruption of a network, far
# shorter than a conversation. The limit has room for the tokens that the engine still delivers after a pause.
_PRESETS = (
    Policy(name=PolicyName.UNBOUNDED, stall_timeout_s=600.0),
    Policy(name=PolicyName.PAUSE, **_BOUNDED, stall_timeout_s=300.0),
    Policy(name=PolicyName.DROP, **_BOUNDED, drop_after_s=5.0, stall_timeout_s=60.0),
    Policy(name=PolicyName.PAUSE_PARK_DROP, **_BOUNDED, park_after_s=2.0, drop_after_s=30.0, stall_timeout_s=60.0),
)
POLICIES: Mapping[PolicyName, Policy] = MappingProxyType({policy.name: policy for policy in _PRESETS})
"""Each policy with its default values."""

DEFAULT = POLICIES[PolicyName.PAUSE_PARK_DROP]


def is_behind(policy: Policy, measure: Measure) -> bool:
    """True when the reader is behind. If it was behind before, or memory is short, the low-water mark counts."""
    if measure.behind_s is not None or measure.pressure:
        events_mark = _LOW_EVENTS if policy.low_events is None else policy.low_events
        return _is_above(measure, policy.low_mark_bytes, events_mark)
    return _exceeds(measure, policy.high_bytes, policy.high_events)


def spare(policy: Policy, measure: Measure) -> tuple[int, int]:
    """How many more bytes and events may wait until the reader can be behind; -1 if it is behind."""
    if is_behind(policy, measure):
        return -1, -1
    waiting_bytes, high_bytes, high_events = _waiting_bytes(measure), policy.high_bytes, policy.high_events
    return (
        MAX_AMOUNT if high_bytes is None else max(0, high_bytes - waiting_bytes),
        MAX_AMOUNT if high_events is None else high_events - measure.queued_events,
    )


def decide(policy: Policy, measure: Measure) -> Decision:
    """Decide what a reader that is measured so costs its response."""
    if _exceeds(measure, policy.limit_bytes, policy.limit_events) or _is_stalled(policy, measure):
        return Decision.DROP
    if not is_behind(policy, measure):
        return Decision.RUN
    behind_s = measure.behind_s or 0.0
    # A policy that does not pause can only drop when memory is short.
    patience = Pressure.TIGHT if policy.pauses else Pressure.NONE
    if measure.pressure > patience or (policy.drop_after_s is not None and behind_s >= policy.drop_after_s):
        return Decision.DROP
    if not policy.pauses:
        return Decision.RUN
    if policy.park_after_s is not None and behind_s >= policy.park_after_s:
        return Decision.PARK
    return Decision.PAUSE


def _is_stalled(policy: Policy, measure: Measure) -> bool:
    return policy.stall_timeout_s is not None and measure.stalled_s > policy.stall_timeout_s


def _exceeds(measure: Measure, bytes_mark: int | None, events_mark: int | None) -> bool:
    """True above a mark; a mark in bytes counts only for more than a few events."""
    return _is_above(measure, bytes_mark if measure.queued_events > _FEW_EVENTS else None, events_mark)


def _is_above(measure: Measure, bytes_mark: int | None, events_mark: int | None) -> bool:
    return (bytes_mark is not None and _waiting_bytes(measure) > bytes_mark) or (
        events_mark is not None and measure.queued_events > events_mark
    )


def _waiting_bytes(measure: Measure) -> int:
    """Queued and unsent bytes: for the reader it makes no difference in which buffer they wait."""
    return measure.queued_bytes + measure.unsent_bytes
