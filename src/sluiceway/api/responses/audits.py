"""Questions to the other processes about what they hold, and who waits for which answer."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.ipc.messages.to_api import AuditReport
from sluiceway.ipc.messages.to_tokenizer import AuditQuery, FromApi


class Audits:
    """Open questions. Synchronous, as the hub is."""

    def __init__(self, push: Callable[[FromApi], None]) -> None:
        self._push = push
        self._waiting: dict[int, Callable[[AuditReport], None]] = {}
        self._last_id = 0

    def ask(self, tell: Callable[[AuditReport], None]) -> int:
        """Ask; `tell` is called with the answer, if one comes. Returns the id to `forget`. Raises `PeerGone`."""
        self._last_id += 1
        self._push(AuditQuery(self._last_id))
        self._waiting[self._last_id] = tell
        return self._last_id

    def forget(self, query_id: int) -> None:
        """Nobody waits for this answer any more. Idempotent."""
        self._waiting.pop(query_id, None)

    def answered(self, report: AuditReport) -> None:
        """Pass an answer on; one that nobody waits for is ignored."""
        tell = self._waiting.pop(report.query_id, None)
        if tell is not None:
            tell(report)
