"""The queue of requests that want to be scheduled: first come, first served, and any one may leave at any time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from sluiceway.engine.scheduler.request import Request
from sluiceway.errors import InvariantError
from sluiceway.types import Rid


class WaitingQueue:
    """All operations cost O(1), however many wait."""

    def __init__(self) -> None:
        self._requests: OrderedDict[Rid, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, rid: Rid) -> bool:
        return rid in self._requests

    def __iter__(self) -> Iterator[Rid]:
        """The next to be scheduled first."""
        return iter(self._requests)

    def push_back(self, request: Request) -> None:
        """A newcomer. Raises `InvariantError` if it stands here already."""
        if request.rid in self._requests:
            raise InvariantError(f"sequence {request.rid} stands in the queue already")
        self._requests[request.rid] = request

    def push_front(self, request: Request) -> None:
        """One that was in before: ahead of everybody. Raises `InvariantError` if it stands here already."""
        self.push_back(request)
        self._requests.move_to_end(request.rid, last=False)

    def remove(self, rid: Rid) -> None:
        """Leave, from any place. Raises `InvariantError` if it does not stand here."""
        if self._requests.pop(rid, None) is None:
            raise InvariantError(f"sequence {rid} does not stand in the queue")

    def first(self) -> Request | None:
        """The next to be scheduled; it stays in the queue."""
        return next(iter(self._requests.values()), None)
