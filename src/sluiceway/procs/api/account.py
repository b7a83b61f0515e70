"""The account of sequences that passed through the API process: what came in equals what went out and what is here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Account:
    """Counts of sequences since the start. `finished` counts terminals, of sequences that were rejected none."""

    submitted: int = 0
    accepted: int = 0
    rejected: int = 0
    finished: int = 0

    def facts(self, *, sessions: int, live: int, tombstones: int) -> dict[str, int]:
        return {
            "sessions": sessions,
            "live": live,
            "tombstones": tombstones,
            "submitted": self.submitted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "finished": self.finished,
        }

    def violations(self, *, live: int, tombstones: int) -> list[str]:
        """Every broken rule, as a sentence."""
        if self.submitted == self.rejected + self.finished + live + tombstones:
            return []
        return [
            f"api: {self.submitted} sequences were submitted, but {self.rejected} rejected + {self.finished} finished"
            f" + {live} live + {tombstones} cancelled are {self.rejected + self.finished + live + tombstones}"
        ]
