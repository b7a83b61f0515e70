"""The terms of one response, fixed when it opens: from the configuration of the server, and from the request."""

from __future__ import annotations

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.ranges import MARK, MARK_S, Range
from sluiceway.response.backlog import Window
from sluiceway.response.policy import DEFAULT, Policy

MAX_EVENTS = 1_000_000
_EVENTS, _AHEAD = Range(1, MAX_EVENTS), Range(0, MAX_EVENTS)
_BYTES = Range(1, MARK.high)


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a response that can be resumed. Raises `ConfigError` for a value out of range.

    `grace_s` is how long the response may run without a reader; with 0 it is cancelled when the last reader leaves.
    Without a reader it generates until `ahead_tokens` tokens wait, then it pauses. `ttl_s` is how long the response is
    kept after its end.
    """

    max_bytes: int = 512 * 1024
    max_events: int = 4096
    grace_s: float = 0.0
    ahead_tokens: int = 256
    ttl_s: float = 60.0

    def __post_init__(self) -> None:
        _check(self, "max_bytes", _BYTES)
        _check(self, "max_events", _EVENTS)
        _check(self, "grace_s", MARK_S)
        _check(self, "ahead_tokens", _AHEAD)
        _check(self, "ttl_s", MARK_S)

    @property
    def window(self) -> Window:
        """How much is kept after every reader has got it."""
        return Window(self.max_bytes, self.max_events)


class StreamTerms(msgspec.Struct, frozen=True, kw_only=True):
    """How one response treats its readers.

    `keep_alive_s`: after this silence a reader gets a comment; 0 is off. `retention` None: a plain response, which
    keeps nothing that its reader has got.
    """

    policy: Policy = DEFAULT
    keep_alive_s: float = 15.0
    retention: Retention | None = None

    def __post_init__(self) -> None:
        _check(self, "keep_alive_s", MARK_S)

    @property
    def may_return(self) -> bool:
        """True when the response goes on after its last reader has left."""
        return self.retention is not None and self.retention.grace_s > 0.0


def _check(terms: Retention | StreamTerms, field: str, bounds: Range) -> None:
    if not bounds.holds(getattr(terms, field)):
        raise ConfigError(field, f"must be {bounds}")
