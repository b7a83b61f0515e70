"""Which response a repeated request belongs to: by the caller's `Idempotency-Key`, and only with the same request.

A client that does not know whether its request arrived sends it again with the same key. It joins the response that
runs, or gets a replay of the one that has ended; it never sets off a second generation. The same key with another
request is a mistake of the client's. Keys of different callers have nothing to do with each other.

The header: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/. It lets a server refuse a
repetition while the first request runs; here it can be joined, since responses may have several readers.
"""

from __future__ import annotations

import enum
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from sluiceway.errors import ConfigError, invalid

HEADER = "Idempotency-Key"
MAX_KEY_CHARACTERS = 255


class Verdict(enum.Enum):
    """What a request with a key is."""

    NEW = "new"
    """The first one: open a response with the id that was proposed."""
    JOIN = "join"
    """Its response runs: read it from the beginning."""
    REPLAY = "replay"
    """Its response has ended: read it from the beginning, if it is still held."""
    CONFLICT = "conflict"
    """Another request was sent with this key: 422."""
    TAKEN = "taken"
    """A response that is held has the id that was proposed: 409."""
    GONE = "gone"
    """Its response has ended, and another one has its id since: 410."""
    FULL = "full"
    """More keys are in their time than there is room for: 503."""


class Claim(NamedTuple):
    """`stream_id` is the response to read; for a conflict, the response that has the key.

    `retry_after_s` is for a key that finds no room: when some will be free, as far as that is known.
    """

    verdict: Verdict
    stream_id: str
    retry_after_s: float = 0.0


@dataclass(slots=True)
class _Entry:
    digest: bytes
    stream_id: str
    ended_s: float | None = None
    is_gone: bool = False
    """Another response now has the id of this key's response."""


class Idempotency:
    """Bounded, and never by forgetting a key in its time: then its request would generate twice.

    So a new key may find no room. A caller may have as many keys as are still free: a single caller half of the
    table, two callers a third each. However many keys a caller sends, there is room for those of another.
    """

    def __init__(self, *, max_entries: int, ttl_s: float) -> None:
        for field, value in (("max_entries", max_entries), ("ttl_s", ttl_s)):
            if not value > 0:
                raise ConfigError(field, f"must be above 0, not {value}")
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._entries: dict[tuple[str, str], _Entry] = {}
        """By caller and key."""
        self._scopes: dict[str, tuple[str, str]] = {}
        """Caller and key of the response that has an id."""
        self._ended: dict[tuple[str, str], None] = {}
        """Those whose response has ended, in that order."""
        self._n_of = Counter[str]()

    def __len__(self) -> int:
        return len(self._entries)

    def claim(
        self, caller: str, key: str, digest: bytes, stream_id: str, now_s: float, *, is_held: bool = False
    ) -> Claim:
        """What this request is. If it is new, `stream_id` has the key from now on, unless a response has that id."""
        self._forget_old(now_s)
        known = self._entries.get((caller, key))
        if known is not None:
            return Claim(_verdict_on(known, digest), known.stream_id)
        if is_held:
            return Claim(Verdict.TAKEN, stream_id)
        if self._n_of[caller] >= self._max_entries - len(self._entries):
            return Claim(Verdict.FULL, stream_id, self._next_free_s(now_s))
        self.reused(stream_id)
        self._entries[caller, key] = _Entry(digest, stream_id)
        self._scopes[stream_id] = (caller, key)
        self._n_of[caller] += 1
        return Claim(Verdict.NEW, stream_id)

    def ended(self, stream_id: str, now_s: float) -> None:
        """The response is over: from now on its time to live counts. Idle for one without a key."""
        scope = self._scopes.get(stream_id)
        if scope is not None and scope not in self._ended:
            self._ended[scope] = None
            self._entries[scope].ended_s = now_s

    def reused(self, stream_id: str) -> None:
        """Another response has this id: the key of one that is over leads to nothing. Idle for one that is not."""
        scope = self._scopes.get(stream_id)
        if scope in self._ended:
            self._entries[scope].is_gone = True
            del self._scopes[stream_id]

    def forget(self, stream_id: str) -> None:
        """The key is free: the request was refused, or its response is gone. Idle for one without a key."""
        scope = self._scopes.get(stream_id)
        if scope is not None:
            self._remove(scope)

    def _next_free_s(self, now_s: float) -> float:
        if not self._ended:
            return 0.0
        ended_s = self._entries[next(iter(self._ended))].ended_s
        assert ended_s is not None
        return ended_s + self._ttl_s - now_s

    def _forget_old(self, now_s: float) -> None:
        while self._ended and self._next_free_s(now_s) <= 0.0:
            self._remove(next(iter(self._ended)))

    def _remove(self, scope: tuple[str, str]) -> None:
        entry = self._entries.pop(scope)
        self._ended.pop(scope, None)
        if not entry.is_gone:
            del self._scopes[entry.stream_id]
        caller = scope[0]
        self._n_of[caller] -= 1
        if not self._n_of[caller]:
            del self._n_of[caller]


def _verdict_on(entry: _Entry, digest: bytes) -> Verdict:
    if entry.digest != digest:
        return Verdict.CONFLICT
    if entry.is_gone:
        return Verdict.GONE
    return Verdict.JOIN if entry.ended_s is None else Verdict.REPLAY


def begin_digest(path: str) -> hashlib._Hash:
    """Of what two requests must have in common to be the same one; to be updated with the body as it comes."""
    return hashlib.sha256(path.encode() + b"\0")


def checked_key(value: str) -> str:
    """The key as it is. Raises `RequestError` for one that is empty, too long, or not of visible ASCII characters."""
    if not (0 < len(value) <= MAX_KEY_CHARACTERS and all("!" <= character <= "~" for character in value)):
        raise invalid(f"`{HEADER}` must be 1 to {MAX_KEY_CHARACTERS} visible ASCII characters.", HEADER)
    return value
