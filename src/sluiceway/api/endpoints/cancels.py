"""Cancellations by clients: each is carried out once, waited for, and remembered with its receipt."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.api.responses.response import Response
from sluiceway.errors import RequestError
from sluiceway.protocols.native.streams import RELEASE_TIMEOUT, Receipt, stream_ended, stream_not_found
from sluiceway.response.lifecycle import LIVE
from sluiceway.response.shares import Shares
from sluiceway.types import FinishReason

RELEASE_TIMEOUT_S = 5.0
"""How long the engine may take to confirm: many steps."""


class _Asked(NamedTuple):
    """A cancellation. `opened_s` distinguishes a stream from a later one with the same id."""

    opened_s: float
    receipt: asyncio.Future[Receipt]


class Cancels:
    """Remembers a bounded number of receipts. A full table drops the oldest one of the caller that has the most."""

    def __init__(self, dispatcher: Dispatcher, *, max_receipts: int, timeout_s: float = RELEASE_TIMEOUT_S) -> None:
        self._dispatcher = dispatcher
        self._max_receipts = max_receipts
        self.timeout_s = timeout_s
        """How long a call waits for the receipt."""
        self._asked: dict[tuple[str, str], _Asked] = {}
        self._shares: Shares[tuple[str, str]] = Shares()

    async def cancel(self, stream_id: str, caller: str) -> Receipt:
        """End a stream of this caller, and wait until no other process holds anything of it.

        Idempotent: a second call gets the same receipt. Raises `RequestError`: 404 for an unknown stream, 409 for a
        stream that had ended before, 504 if the engine does not confirm the end in time.
        """
        asked = self._ask(stream_id, caller)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.shield(asked.receipt)
        except TimeoutError:
            raise RequestError(RELEASE_TIMEOUT) from None

    def _ask(self, stream_id: str, caller: str) -> _Asked:
        found = self._dispatcher.registry.find(stream_id, caller)
        asked = self._asked.get((caller, stream_id))
        if found is None:
            if asked is not None:
                return asked  # cancelled before it began: a refused request has no record
            raise RequestError(stream_not_found(stream_id))
        record = found.record if isinstance(found, Response) else found
        if asked is not None and asked.opened_s == record.opened_s:
            return asked
        if not isinstance(found, Response) or found.stream.state not in LIVE:
            raise RequestError(stream_ended(record))
        return self._begin(found)

    def _begin(self, response: Response) -> _Asked:
        spec, clock = response.spec, self._dispatcher.clock
        asked_s, state, n_ended = clock(), response.stream.state.value, len(response.held)
        asked = _Asked(response.stream.opened_s, asyncio.get_running_loop().create_future())
        self._asked[spec.caller, spec.stream_id] = asked
        self._shares.add(spec.caller, (spec.caller, spec.stream_id))
        if len(self._asked) > self._max_receipts:
            address = self._shares.excess(spec.caller)
            self._shares.drop(address[0], address)
            del self._asked[address]

        def give_receipt() -> None:
            asked.receipt.set_result(Receipt(state, response.record, response.held[n_ended:], clock() - asked_s))

        response.close(FinishReason.CANCELLED)
        self._dispatcher.registry.wake()
        response.released.wait(give_receipt)
        return asked
