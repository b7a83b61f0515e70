"""Questions to the other processes about what they hold, and the functions that wait for the answers."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.ipc.messages.to_api import AuditReport
from sluiceway.ipc.messages.to_tokenizer import AuditQuery, FromApi


class Audits:
    """Holds the questions that are not answered yet. No method waits."""

    def __init__(self, push: Callable[[FromApi], None]) -> None:
        self._push = push
        self._waiting: dict[int, Callable[[AuditReport], None]] = {}
        self._last_id = 0

    def ask(self, tell: Callable[[AuditReport], None]) -> int:
        """Ask, and call `tell` with the answer if one comes. Returns the id to `forget`. Raises `PeerGone`."""
        self._last_id += 1
        self._push(AuditQuery(self._last_id))
        self._waiting[self._last_id] = tell
        return self._last_id

    def forget(self, query_id: int) -> None:
        """Ignore the answer to this question. Idempotent."""
        self._waiting.pop(query_id, None)

    def answered(self, report: AuditReport) -> None:
        """Pass an answer to the function that waits for it, if there is one."""
        tell = self._waiting.pop(report.query_id, None)
        if tell is not None:
            tell(report)
