"""Records of responses that are over, in a bounded table: a client that asks late still learns how its stream ended.

Records are found by caller and id: callers that choose the same id never see each other's records.
"""

from __future__ import annotations

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.response.shares import Shares


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a response, now or at its end. Times are seconds of one monotonic clock.

    Each generated token was delivered, was wasted, or still waits.
    """

    stream_id: str
    state: str
    reason: str | None
    generated_tokens: int
    delivered_tokens: int
    wasted_tokens: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    last_event_id: int
    is_resumable: bool
    opened_s: float
    ended_s: float | None


class History:
    """Keeps records, bounded by age and number. A full table drops the oldest one of the caller that has the most."""

    def __init__(self, *, max_records: int, ttl_s: float) -> None:
        for field, value in (("max_records", max_records), ("ttl_s", ttl_s)):
            if not value > 0:
                raise ConfigError(field, f"must be above 0, not {value}")
        self._max_records = max_records
        self._ttl_s = ttl_s
        self._records: dict[tuple[str, str], tuple[StreamRecord, float]] = {}
        """Records in the order in which they were added, each with that time."""
        self._shares: Shares[tuple[str, str]] = Shares()

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: StreamRecord, caller: str, now_s: float) -> None:
        """Add the record of a response that is over. It replaces an earlier one of the same caller and id."""
        address = (caller, record.stream_id)
        self._forget_old(now_s)
        self._records.pop(address, None)
        self._records[address] = (record, now_s)
        self._shares.add(caller, address)
        if len(self._records) > self._max_records:
            self._forget(self._shares.excess(caller))

    def find(self, stream_id: str, caller: str, now_s: float) -> StreamRecord | None:
        """The record; None if this caller had no such response, or its record is forgotten."""
        self._forget_old(now_s)
        found = self._records.get((caller, stream_id))
        return None if found is None else found[0]

    def records(self, caller: str, now_s: float) -> list[StreamRecord]:
        """All records of this caller, the oldest first."""
        self._forget_old(now_s)
        return [self._records[address][0] for address in self._shares.of(caller)]

    def _forget_old(self, now_s: float) -> None:
        while self._records:
            address, (_, added_s) = next(iter(self._records.items()))
            if now_s - added_s < self._ttl_s:
                return
            self._forget(address)

    def _forget(self, address: tuple[str, str]) -> None:
        del self._records[address]
        self._shares.drop(address[0], address)
