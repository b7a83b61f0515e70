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
    FULL = "full"
    """As many responses with keys run as can be remembered: 503."""


class Claim(NamedTuple):
    """`stream_id` is the response to read; of a conflict, the one that has the key."""

    verdict: Verdict
    stream_id: str


@dataclass(frozen=True, slots=True)
class _Entry:
    scope: tuple[str, str]
    digest: bytes


class Idempotency:
    """Bounded: of those whose response has ended, the oldest is forgotten first, or after its time to live."""

    def __init__(self, *, max_entries: int, ttl_s: float) -> None:
        for field, value in (("max_entries", max_entries), ("ttl_s", ttl_s)):
            if not value > 0:
                raise ConfigError(field, f"must be above 0, not {value}")
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._stream_ids: dict[tuple[str, str], str] = {}
        self._entries: dict[str, _Entry] = {}
        self._ended_s: dict[str, float] = {}
        """When streams ended, in that order."""

    def __len__(self) -> int:
        return len(self._entries)

    def claim(
        self, caller: str, key: str, digest: bytes, stream_id: str, now_s: float, *, is_held: bool = False
    ) -> Claim:
        """What this request is. If it is new, `stream_id` has the key from now on, unless a response has that id."""
        self._forget_old(now_s)
        known_id = self._stream_ids.get((caller, key))
        if known_id is not None:
            return Claim(self._verdict_on(known_id, digest), known_id)
        if is_held:
            return Claim(Verdict.TAKEN, stream_id)
        self.reused(stream_id)
        if len(self._entries) >= self._max_entries:
            if not self._ended_s:
                return Claim(Verdict.FULL, stream_id)
            self.forget(next(iter(self._ended_s)))
        self._stream_ids[caller, key] = stream_id
        self._entries[stream_id] = _Entry((caller, key), digest)
        return Claim(Verdict.NEW, stream_id)

    def ended(self, stream_id: str, now_s: float) -> None:
        """The response is over: from now on its time to live counts. Idle for one without a key."""
        if stream_id in self._entries:
            self._ended_s.setdefault(stream_id, now_s)

    def reused(self, stream_id: str) -> None:
        """Another response has this id: the key of one that is over leads to nothing. Idle for one that is not."""
        if stream_id in self._ended_s:
            self.forget(stream_id)

    def forget(self, stream_id: str) -> None:
        """The key is free: the request was refused, or its response is gone. Idle for one without a key."""
        entry = self._entries.pop(stream_id, None)
        if entry is not None:
            del self._stream_ids[entry.scope]
            self._ended_s.pop(stream_id, None)

    def _verdict_on(self, stream_id: str, digest: bytes) -> Verdict:
        if self._entries[stream_id].digest != digest:
            return Verdict.CONFLICT
        return Verdict.REPLAY if stream_id in self._ended_s else Verdict.JOIN

    def _forget_old(self, now_s: float) -> None:
        while self._ended_s:
            stream_id, ended_s = next(iter(self._ended_s.items()))
            if now_s - ended_s < self._ttl_s:
                return
            self.forget(stream_id)


def begin_digest(path: str) -> hashlib._Hash:
    """Of what two requests must have in common to be the same one; to be updated with the body as it comes."""
    return hashlib.sha256(path.encode() + b"\0")


def checked_key(value: str) -> str:
    """The key as it is. Raises `RequestError` for one that is empty, too long, or not of visible ASCII characters."""
    if not (0 < len(value) <= MAX_KEY_CHARACTERS and all("!" <= character <= "~" for character in value)):
        raise invalid(f"`{HEADER}` must be 1 to {MAX_KEY_CHARACTERS} visible ASCII characters.", HEADER)
    return value
