"""The terms of one response, fixed when it opens: from the configuration of the server, and from the request."""

from __future__ import annotations

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.response.backlog import Window
from sluiceway.response.policy import DEFAULT, MAX_AMOUNT, MAX_SECONDS, Policy

MAX_EVENTS = 1_000_000


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
        _check(self, "max_bytes", 1, MAX_AMOUNT)
        _check(self, "max_events", 1, MAX_EVENTS)
        _check(self, "grace_s", 0, MAX_SECONDS)
        _check(self, "ahead_tokens", 0, MAX_EVENTS)
        _check(self, "ttl_s", 0, MAX_SECONDS)

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
        _check(self, "keep_alive_s", 0, MAX_SECONDS)

    @property
    def may_return(self) -> bool:
        """True when the response goes on after its last reader has left."""
        return self.retention is not None and self.retention.grace_s > 0.0


def _check(terms: Retention | StreamTerms, field: str, low: float, high: float) -> None:
    if not low <= getattr(terms, field) <= high:  # also refuses NaN
        raise ConfigError(field, f"must be from {low} to {high:.0f}")
