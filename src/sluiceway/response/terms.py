"""On what terms a response is served: settled when it is opened, by the server's configuration and its request."""

from __future__ import annotations

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.response.policy import DEFAULT, MAX_AMOUNT, MAX_SECONDS, Policy
from sluiceway.response.replay import Window

MAX_EVENTS = 1_000_000


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """A response that can be resumed: what is kept of it for readers that come back. Raises `ConfigError`.

    `grace_s` is how long it may be without a reader before it is ended; 0: when the last one leaves, it is cancelled.
    Without a reader it generates until `ahead_tokens` wait, then pauses. `ttl_s` is how long it is kept once ended.
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
        """What is kept of what every reader has got."""
        return Window(self.max_bytes, self.max_events)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """`keep_alive_s` 0 is off. `retention` None: a plain response, of which nothing is kept that its reader has got."""

    policy: Policy = DEFAULT
    keep_alive_s: float = 15.0
    retention: Retention | None = None

    def __post_init__(self) -> None:
        _check(self, "keep_alive_s", 0, MAX_SECONDS)

    @property
    def may_return(self) -> bool:
        """Whether the response goes on when its last reader has left."""
        return self.retention is not None and self.retention.grace_s > 0.0


def _check(terms: Retention | Terms, field: str, low: float, high: float) -> None:
    if not low <= getattr(terms, field) <= high:  # also refuses NaN
        raise ConfigError(field, f"must be from {low} to {high:.0f}")
