"""Finds the response that a repeated request belongs to, by the `Idempotency-Key` of its caller.

A client that does not know whether its request arrived sends it again with the same key. It joins the response that
runs, or gets a replay of the response that has ended; it never starts a second generation. The same key with another
request is an error of the client. Keys of different callers are independent.

The header: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/. It lets a server refuse a
repetition while the first request runs. This server lets the client join it, since responses may have several readers.
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


class KeyState(enum.Enum):
    """What a request with a key is."""

    NEW = "new"
    """The first request: it opens a response with the proposed id."""
    JOIN = "join"
    """Its response runs: read it from the beginning."""
    REPLAY = "replay"
    """Its response has ended: read it from the beginning, if it is still held."""
    CONFLICT = "conflict"
    """Another request was sent with this key: 422."""
    TAKEN = "taken"
    """Another response that is held has the proposed id: 409."""
    GONE = "gone"
    """Its response has ended, and another response has its id now: 410."""
    FULL = "full"
    """The table has no room for another key: 503."""


class Claim(NamedTuple):
    """What a request with a key is, and which response it belongs to.

    `stream_id` is the response to read; for a conflict, the response that has the key. `retry_after_s` is for a key
    that finds no room: when an entry will be free, as far as that is known.
    """

    state: KeyState
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
    """A bounded table of keys. It never drops a key before its time, since its request could then generate twice.

    So a new key may find no room. A caller may have as many keys as are still free: one caller at most half of the
    table, two callers a third each. However many keys one caller sends, there is room for the keys of another.
    """

    def __init__(self, *, max_entries: int, ttl_s: float) -> None:
        for field, value in (("max_entries", max_entries), ("ttl_s", ttl_s)):
            if not value > 0:
                raise ConfigError(field, f"must be above 0, not {value}")
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._entries: dict[tuple[str, str], _Entry] = {}
        """Entries by caller and key."""
        self._scopes: dict[str, tuple[str, str]] = {}
        """Caller and key by the id of their response."""
        self._ended: dict[tuple[str, str], None] = {}
        """Keys whose response has ended, in the order of their ends."""
        self._n_of = Counter[str]()
        self.is_used = False
        """True after the first key."""

    def __len__(self) -> int:
        return len(self._entries)

    def claim(
        self, caller: str, key: str, digest: bytes, stream_id: str, now_s: float, *, is_held: bool = False
    ) -> Claim:
        """Look a request up. A new key belongs to `stream_id` from now on, unless a response holds that id already."""
        self.is_used = True
        self._forget_old(now_s)
        known = self._entries.get((caller, key))
        if known is not None:
            return Claim(_state_of(known, digest), known.stream_id)
        if is_held:
            return Claim(KeyState.TAKEN, stream_id)
        if self._n_of[caller] >= self._max_entries - len(self._entries):
            return Claim(KeyState.FULL, stream_id, self._next_free_s(now_s))
        self.reused(stream_id)
        self._entries[caller, key] = _Entry(digest, stream_id)
        self._scopes[stream_id] = (caller, key)
        self._n_of[caller] += 1
        return Claim(KeyState.NEW, stream_id)

    def ended(self, stream_id: str, now_s: float) -> None:
        """Start the time to live of a key: its response is over. Ignores a response without a key."""
        scope = self._scopes.get(stream_id)
        if scope is not None and scope not in self._ended:
            self._ended[scope] = None
            self._entries[scope].ended_s = now_s

    def reused(self, stream_id: str) -> None:
        """Note that a new response has this id. The key of an ended response with the same id now leads nowhere."""
        scope = self._scopes.get(stream_id)
        if scope in self._ended:
            self._entries[scope].is_gone = True
            del self._scopes[stream_id]

    def forget(self, stream_id: str) -> None:
        """Free the key of this response: its request was refused, or it is gone. Ignores a response without a key."""
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


def _state_of(entry: _Entry, digest: bytes) -> KeyState:
    if entry.digest != digest:
        return KeyState.CONFLICT
    if entry.is_gone:
        return KeyState.GONE
    return KeyState.JOIN if entry.ended_s is None else KeyState.REPLAY


def begin_digest(path: str) -> hashlib._Hash:
    """Begin the digest by which two requests are compared. The caller updates it with the body as it arrives."""
    return hashlib.sha256(path.encode() + b"\0")


def checked_key(value: str) -> str:
    """Return the key unchanged. Raises `RequestError` if it is empty, too long, or has other than visible ASCII."""
    if not (0 < len(value) <= MAX_KEY_CHARACTERS and all("!" <= character <= "~" for character in value)):
        raise invalid(f"`{HEADER}` must be 1 to {MAX_KEY_CHARACTERS} visible ASCII characters.", HEADER)
    return value
