"""The sequences that the API process has upstream: where each one stands, and the account that must balance.

A sequence is in exactly one of two tables, from `Tokenize` until its terminal: *routes* while its answer wants its
events, *tombstones* once its answer has ended early and its cancel is under way. An id that is in neither is unknown:
its process, or this one's interest in it, has died.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluiceway.api.responses.answer import Answer
from sluiceway.types import FinishReason, Rid


@dataclass(slots=True)
class Route:
    """Where the events of a sequence go. `last_token_s` None: it has had no token yet."""

    answer: Answer
    index: int
    last_token_s: float | None = None

    @property
    def heard_s(self) -> float:
        """When its last token came; before the first, when the request was sent."""
        return self.answer.stream.opened_s if self.last_token_s is None else self.last_token_s


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A sequence that was cancelled and whose terminal has not come."""

    answer: Answer
    reason: FinishReason
    since_s: float


class Sequences:
    """Both tables, and counts since the start. Every method but `open` accepts ids that are not known."""

    def __init__(self) -> None:
        self._routes: dict[Rid, Route] = {}
        self._tombstones: dict[Rid, Tombstone] = {}
        self._submitted = 0
        self._rejected = 0
        self._finished = 0
        self.n_accepted = 0
        self.n_lost = 0
        """Sequences that neither tokenizer nor engine knew when they were asked; each was ended."""
        self.n_lost_cancels = 0
        """Cancels that never arrived, and were repeated."""

    def __len__(self) -> int:
        """Sequences in both tables: all whose terminal has not come."""
        return len(self._routes) + len(self._tombstones)

    def open(self, answer: Answer, rids: tuple[Rid, ...]) -> None:
        """The sequences of a new answer, in the order of its choices."""
        self._routes.update((rid, Route(answer, index)) for index, rid in enumerate(rids))
        self._submitted += len(rids)

    def route_of(self, rid: Rid) -> Route | None:
        """None if nobody wants its events."""
        return self._routes.get(rid)

    def bury(self, rids: Iterable[Rid], reason: FinishReason, now_s: float) -> tuple[Rid, ...]:
        """Turn routes into tombstones. Returns the ids of those that were routes: they need a cancel."""
        buried = []
        for rid in rids:
            route = self._routes.pop(rid, None)
            if route is not None:
                self._tombstones[rid] = Tombstone(route.answer, reason, now_s)
                buried.append(rid)
        return tuple(buried)

    def settle(self, rid: Rid) -> Route | Tombstone | None:
        """Its terminal has come: take it out of its table."""
        found = self._take(rid)
        self._finished += found is not None
        return found

    def settle_all(self) -> list[Route | Tombstone]:
        """No terminal will come any more: take out whatever there is."""
        found: list[Route | Tombstone] = [*self._routes.values(), *self._tombstones.values()]
        self._routes.clear()
        self._tombstones.clear()
        self._finished += len(found)
        return found

    def reject(self, rids: Iterable[Rid]) -> list[Route | Tombstone]:
        """Sequences that upstream has refused, and of which it holds nothing."""
        found = [entry for rid in rids if (entry := self._take(rid)) is not None]
        self._rejected += len(found)
        return found

    def quiet(self, before_s: float) -> list[Rid]:
        """Sequences without news since then: they wait for their turn, or a message about them was lost."""
        routes = [rid for rid, route in self._routes.items() if route.heard_s < before_s]
        return routes + [rid for rid, tombstone in self._tombstones.items() if tombstone.since_s < before_s]

    def __contains__(self, rid: Rid) -> bool:
        """Whether its terminal has not come."""
        return rid in self._routes or rid in self._tombstones

    def tombstone_of(self, rid: Rid) -> Tombstone | None:
        """None unless the sequence was cancelled and its terminal has yet to come."""
        return self._tombstones.get(rid)

    def counts(self) -> dict[str, int]:
        """What is here, and what has been. `finished` counts terminals; a sequence that was rejected has none."""
        return {
            "live": len(self._routes),
            "tombstones": len(self._tombstones),
            "submitted": self._submitted,
            "accepted": self.n_accepted,
            "rejected": self._rejected,
            "finished": self._finished,
        }

    def violations(self) -> list[str]:
        """Every broken rule, as a sentence."""
        broken = []
        if self.n_lost:
            broken.append(f"api: {self.n_lost} sequences were lost between processes, and ended")
        if self.n_lost_cancels:
            broken.append(f"api: {self.n_lost_cancels} cancels were lost between processes, and repeated")
        known = self._rejected + self._finished + len(self)
        if self._submitted == known:
            return broken
        return [
            *broken,
            f"api: {self._submitted} sequences were submitted, but {self._rejected} rejected"
            f" + {self._finished} finished + {len(self._routes)} live + {len(self._tombstones)} cancelled are {known}",
        ]

    def _take(self, rid: Rid) -> Route | Tombstone | None:
        return self._routes.pop(rid, None) or self._tombstones.pop(rid, None)
