"""The answers of this process by their ids, and a memory of those that are gone. Each belongs to its caller.

Nobody learns anything of an answer of another caller, not even that there is one: ids and keys are looked up under the
caller's name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import assert_never

from sluiceway.api.responses.answer import Answer
from sluiceway.config import StreamsConfig
from sluiceway.errors import Refusal, RequestError
from sluiceway.obs.metrics import StreamsCensus
from sluiceway.refusals import RETRY_AFTER_S
from sluiceway.response.budget import Budget
from sluiceway.response.history import History, StreamRecord
from sluiceway.response.idempotency import HEADER as KEY_HEADER
from sluiceway.response.idempotency import Idempotency, Verdict
from sluiceway.response.lifecycle import State

_ID_TAKEN = Refusal(
    status=409,
    code="stream_id_taken",
    message="A stream of yours has this id already; choose another one, or none.",
    param="stream_id",
)
_KEY_REUSED = Refusal(
    status=422,
    code="idempotency_key_reused",
    message="This `Idempotency-Key` came before with another request.",
    param=KEY_HEADER,
)
GONE = Refusal(status=410, code="stream_gone", message="What was asked for of this stream is not kept any more.")


class Streams:
    """See the module's docstring. An answer is *open* while it generates or somebody reads it."""

    def __init__(self, config: StreamsConfig) -> None:
        self.budget = Budget(
            max_bytes=config.max_stream_bytes, max_events=config.max_stream_events, max_kept=config.kept_streams
        )
        self._keys = Idempotency(max_entries=config.idempotency_keys, ttl_s=config.idempotency_ttl_s)
        self._history = History(max_records=config.history_records, ttl_s=config.history_ttl_s)
        self._answers: dict[tuple[str, str], Answer] = {}
        self._open: dict[Answer, None] = {}
        self._now_s = -math.inf
        """As told last: an answer gives way whenever its room is needed, and nobody says then what time it is."""
        self.when_let_go: Callable[[Answer], None] = lambda answer: None
        """Called with each answer that is let go while nobody looks at it, since its room or its id is needed."""

    def __iter__(self) -> Iterator[Answer]:
        """All that are held, in any state, as they are now: they may be added and removed meanwhile."""
        return iter(list(self._answers.values()))

    @property
    def n_open(self) -> int:
        return len(self._open)

    def find(self, stream_id: str, caller: str, now_s: float) -> Answer | StreamRecord | None:
        """An answer that is held, or what is remembered of it."""
        held = self._answers.get((caller, stream_id))
        return self._history.find(stream_id, caller, now_s) if held is None else held

    def records(self, caller: str, now_s: float) -> list[StreamRecord]:
        """How the caller's answers stand, and stood; the oldest first."""
        held = [answer.record for (owner, _), answer in self._answers.items() if owner == caller]
        return [*self._history.records(caller, now_s), *held]

    def check_free(self, stream_id: str, caller: str) -> None:
        """Raises `RequestError` (409) if the caller has an answer of this id."""
        if (caller, stream_id) in self._answers:
            raise RequestError(_ID_TAKEN)

    def claim(self, caller: str, key: str, digest: bytes, stream_id: str, now_s: float) -> Answer | None:
        """The answer that a repeated request belongs to; None for a new one, whose answer will have this (free) id.

        Raises `RequestError` if it is neither.
        """
        self._now_s = now_s
        is_held = (caller, stream_id) in self._answers
        proposed = _address(caller, stream_id)
        verdict, address, retry_after_s = self._keys.claim(caller, key, digest, proposed, now_s, is_held=is_held)
        match verdict:
            case Verdict.NEW:
                return None
            case Verdict.CONFLICT:
                raise RequestError(_KEY_REUSED)
            case Verdict.TAKEN:
                raise RequestError(_ID_TAKEN)
            case Verdict.FULL:
                raise RequestError(_no_room_for_key(retry_after_s))
            case Verdict.GONE:
                raise RequestError(GONE)
            case Verdict.JOIN | Verdict.REPLAY:
                held = self._answers.get((caller, address.partition("/")[2]))
                if held is None:
                    raise RequestError(GONE)
                if not held.is_broken:
                    return held
                self._keys.forget(address)
                if address == proposed:  # the same request with the id that the client has chosen for it
                    self._let_go(held)
                return self.claim(caller, key, digest, stream_id, now_s)
            case _:
                assert_never(verdict)

    def forget_key(self, stream_id: str, caller: str) -> None:
        """Nothing came of the request: it may be sent again. Idempotent."""
        self._keys.forget(_address(caller, stream_id))

    def add(self, answer: Answer) -> None:
        """A new answer, which is open. Its id is free."""
        order = answer.order
        self._keys.reused(_address(order.caller, order.stream_id))
        self._answers[order.caller, order.stream_id] = answer
        self._open[answer] = None

    def reopen(self, answer: Answer) -> None:
        """Somebody reads it (again)."""
        self.budget.reclaim(answer)
        self._open[answer] = None

    def settle(self, answer: Answer, now_s: float) -> bool:
        """Something has changed: note whether it is still open, let it go if it is over. Returns whether it is held."""
        self._now_s = now_s
        if not answer.is_over:
            return True
        self._open.pop(answer, None)
        if not self._holds(answer):  # another one has its id
            answer.stream.give_way()
            return False
        if not answer.is_broken:
            self._keys.ended(_address(answer.order.caller, answer.order.stream_id), now_s)
        if answer.stream.state is not State.CLOSED:
            self.budget.keep(answer, partial(self._let_go, answer), answer.order.caller, answer.stream.held_bytes)
            return self._holds(answer)
        self._remove(answer)
        return False

    def census(self) -> StreamsCensus:
        """What they hold together, and how many there are in each state."""
        states = Counter(answer.stream.state for answer in self._answers.values())
        return StreamsCensus(
            by_state={state.value: states[state] for state in State},
            readers=sum(len(answer.readers) for answer in self._answers.values()),
            backlog_bytes=self.budget.n_bytes,
            backlog_events=self.budget.n_events,
        )

    def _holds(self, answer: Answer) -> bool:
        return self._answers.get((answer.order.caller, answer.order.stream_id)) is answer

    def _let_go(self, answer: Answer) -> None:
        """Of one that has ended: what is kept of it, unless somebody reads it still, and its id."""
        is_over = answer.is_over
        if is_over:
            answer.stream.give_way()
        self._remove(answer)
        if is_over:
            self.when_let_go(answer)

    def _remove(self, answer: Answer) -> None:
        order = answer.order
        self.budget.reclaim(answer)
        del self._answers[order.caller, order.stream_id]
        if answer.is_broken:  # whoever sends it again wants an answer, not the same error
            self.forget_key(order.stream_id, order.caller)
        # A whole answer that was ended early is told as a refusal, but there was one.
        if answer.stream.is_accepted or not answer.is_refused:
            self._history.add(answer.record, order.caller, self._now_s)


def _no_room_for_key(retry_after_s: float) -> Refusal:
    return Refusal(
        status=503,
        code="idempotency_keys_full",
        message="This server remembers no more keys at the moment; try again later, or send the request without one.",
        param=KEY_HEADER,
        retry_after_s=max(RETRY_AFTER_S, retry_after_s),
    )


def _address(caller: str, stream_id: str) -> str:
    """An id that no two answers share; callers have no slash in them."""
    return f"{caller}/{stream_id}"
