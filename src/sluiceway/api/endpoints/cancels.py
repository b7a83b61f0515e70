"""Cancellations that clients asked for: each is carried out once, waited for, and remembered with what it came to."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from sluiceway.api.responses.answer import Answer
from sluiceway.api.responses.hub import Hub
from sluiceway.errors import RequestError
from sluiceway.protocols.native.streams import RELEASE_TIMEOUT, Receipt, stream_ended, stream_not_found
from sluiceway.response.lifecycle import LIVE
from sluiceway.response.shares import Shares

RELEASE_TIMEOUT_S = 5.0
"""Many steps: who waits longer waits for an engine that hangs."""


class _Asked(NamedTuple):
    """`opened_s` tells a stream from a later one of the same id."""

    opened_s: float
    receipt: asyncio.Future[Receipt]


class Cancels:
    """Bounded: where there are too many receipts, the caller that has the most loses its oldest."""

    def __init__(self, hub: Hub, *, max_receipts: int, timeout_s: float = RELEASE_TIMEOUT_S) -> None:
        self._hub = hub
        self._max_receipts = max_receipts
        self._timeout_s = timeout_s
        self._asked: dict[tuple[str, str], _Asked] = {}
        self._shares: Shares[tuple[str, str]] = Shares()

    async def cancel(self, stream_id: str, caller: str) -> Receipt:
        """End this stream of the caller's, and wait until nothing of it is held upstream.

        Idempotent: whoever asks again, or meanwhile, gets the same receipt. Raises `RequestError`: 404 for an unknown
        stream, 409 for one that had ended otherwise, 504 if the engine does not confirm it in time.
        """
        asked = self._ask(stream_id, caller)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(asked.receipt)
        except TimeoutError:
            raise RequestError(RELEASE_TIMEOUT) from None

    def _ask(self, stream_id: str, caller: str) -> _Asked:
        found = self._hub.streams.find(stream_id, caller, self._hub.now_s)
        asked = self._asked.get((caller, stream_id))
        if found is None:
            if asked is not None:
                return asked  # it had not begun: that is a refused request, of which there is no record
            raise RequestError(stream_not_found(stream_id))
        record = found.record if isinstance(found, Answer) else found
        if asked is not None and asked.opened_s == record.opened_s:
            return asked
        if not isinstance(found, Answer) or found.stream.state not in LIVE:
            raise RequestError(stream_ended(record))
        return self._begin(found)

    def _begin(self, answer: Answer) -> _Asked:
        hub, order, asked_s = self._hub, answer.order, self._hub.now_s
        found, n_ended = answer.stream.state.value, len(answer.held)
        asked = _Asked(answer.stream.opened_s, asyncio.get_running_loop().create_future())
        self._asked[order.caller, order.stream_id] = asked
        self._shares.add(order.caller, (order.caller, order.stream_id))
        if len(self._asked) > self._max_receipts:
            address = self._shares.excess(order.caller)
            self._shares.drop(address[0], address)
            del self._asked[address]

        def give_receipt() -> None:
            asked.receipt.set_result(Receipt(found, answer.record, answer.held[n_ended:], hub.now_s - asked_s))

        hub.cancel(answer, give_receipt)
        return asked
