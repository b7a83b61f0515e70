"""The API process' mind: every open answer, and which of them each event from upstream belongs to.

Synchronous from end to end: nothing here waits, so cleanup that goes through here cannot be cancelled half way. It owns
no socket and no loop; messages leave through `push`, and a writer that waits for an answer is woken through the answer.

What stands where, and what has become of it, is in `Sequences`. An event of an id that is not known there is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, assert_never

from structlog.typing import FilteringBoundLogger

from sluiceway.errors import PeerGone, Refusal, RequestError, invalid
from sluiceway.messages.to_api import Accepted, AuditReport, Delta, EngineIsUp, Events, Finished, Rejected, ToApi
from sluiceway.messages.to_child import Role
from sluiceway.messages.to_tokenizer import Cancel, FromApi, Tokenize
from sluiceway.obs.metrics import Metrics
from sluiceway.procs.api.answer import Answer
from sluiceway.procs.api.audits import Audits
from sluiceway.procs.api.readiness import Readiness
from sluiceway.procs.api.sequences import Route, Sequences, Tombstone
from sluiceway.protocols.generation import Framer, Generation
from sluiceway.refusals import DRAINING, ENGINE_LOST, ENGINE_UNAVAILABLE, INTERNAL_ERROR, OVERLOADED
from sluiceway.stream.session import CancelUpstream, Effect, EndResponse, State
from sluiceway.types import EngineFacts, FinishReason, Rid

E = TypeVar("E", Accepted, Delta, Finished)


class Hub:
    """See the module's docstring. `max_sequences` bounds those whose terminal has not come."""

    def __init__(
        self,
        *,
        push: Callable[[FromApi], None],
        has_peer: Callable[[], bool],
        next_rid: Callable[[], Rid],
        clock: Callable[[], float],
        metrics: Metrics,
        log: FilteringBoundLogger,
        max_sequences: int,
    ) -> None:
        self._push = push
        self._next_rid = next_rid
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._max_sequences = max_sequences
        self._sequences = Sequences()
        self._open: set[Answer] = set()
        self.audits = Audits(push)
        self._touched: set[Answer] = set()
        self._when_empty: list[Callable[[], None]] = []
        self._readiness = Readiness(has_peer)
        self.facts: EngineFacts | None = None
        """What the engine can hold; None before the first one has started."""

    @property
    def n_open(self) -> int:
        """Answers that are not over: some client still waits or reads."""
        return len(self._open)

    @property
    def unready(self) -> Refusal | None:
        """Why nothing new can be served now; None if it can."""
        return self._readiness.refusal

    @property
    def is_served(self) -> bool:
        """Whether tokenizer and engine are there to answer, be it only what is open already."""
        return self._readiness.serves

    # From clients.

    def open(
        self, generation: Generation, framer: Framer, error_body: Callable[[Refusal], bytes], request_id: str
    ) -> Answer:
        """Send a request upstream; whoever gets an answer must `leave` it. Raises `RequestError`, and holds nothing."""
        n = generation.n_choices
        if n > self._max_sequences:  # no waiting cures that
            raise invalid(f"This server takes at most {self._max_sequences} choices at once, not {n}.", "n")
        refusal = self.unready
        if refusal is None and len(self._sequences) + n > self._max_sequences:
            refusal = OVERLOADED
        if refusal is not None:
            raise RequestError(refusal)
        rids = tuple(self._next_rid() for _ in range(n))
        answer = Answer(generation, framer, error_body, rids=rids, request_id=request_id, now_s=self._clock())
        try:
            self._push(
                Tokenize(rids=rids, prompts=generation.prompts, sampling=generation.sampling, stop=generation.stop)
            )
        except PeerGone:
            raise RequestError(ENGINE_UNAVAILABLE) from None
        self._sequences.open(answer, rids)
        self._open.add(answer)
        return answer

    def written(self, answer: Answer, n_tokens: int) -> None:
        """What was taken from the answer's outbox has been handed to the transport."""
        if answer.session.state is State.CLOSED:
            self._metrics.tokens_dropped(n_tokens)  # the client left meanwhile
        else:
            self._metrics.tokens_delivered(n_tokens)
        answer.session.written()

    def leave(self, answer: Answer) -> None:
        """Nobody writes this answer any more. Cancels what still runs for it. Idempotent."""
        self._apply(answer, answer.session.lost())
        if answer not in self._open:
            return
        self._open.discard(answer)
        self._metrics.tokens_dropped(answer.session.take().n_tokens)
        self._log_end(answer)
        while self._when_empty and not self._open:
            self._when_empty.pop()()

    # From upstream.

    def receive(self, message: ToApi) -> None:
        """Route what one message brought, then wake each answer that it touched, once."""
        match message:
            case Events(events=events, stats=stats, wasted_tokens=n_wasted):
                now_s = self._clock()
                for event in events:
                    if isinstance(event, Delta):  # nearly all are
                        self._delta(event, now_s)
                    else:
                        self._turn(event, now_s)
                self._metrics.tokens_dropped(n_wasted)
                self._wake()
                if stats is not None:
                    self._metrics.engine_stepped(stats)
            case AuditReport():
                self.audits.answered(message)
            case EngineIsUp(facts):
                self.facts = facts
                self._readiness.engine_heard()
            case _:
                assert_never(message)

    # From the supervisor.

    def peer_up(self, role: Role) -> None:
        """A process serves (again)."""
        self._readiness.went_up(role)
        if role is Role.ENGINE:
            self._metrics.engine_started()
        self._log.info("peer up", role=role.value)

    def peer_down(self, role: Role, *, hung: bool) -> None:
        """A process hangs, or died; in that case everything that was open ends now, since its terminals never come."""
        self._log.warning("peer down", role=role.value, hung=hung, n_open=self.n_open)
        if hung:
            self._readiness.hangs(role)
            return
        self._readiness.died(role)
        if role is Role.ENGINE:
            self._metrics.engine_died()
        for lost in self._sequences.settle_all():
            self._metrics.sequence_finished(lost.reason if isinstance(lost, Tombstone) else FinishReason.ERROR)
        self.end_all(FinishReason.ERROR, ENGINE_LOST)

    def drain(self) -> None:
        """Open nothing new; what is open goes on. Idempotent."""
        if self.unready is not DRAINING:
            self._readiness.drain()
            self._log.info("draining", n_open=self.n_open)

    def when_empty(self, tell: Callable[[], None]) -> None:
        """Call `tell` as soon as no answer is open; at once if that is so now."""
        if self._open:
            self._when_empty.append(tell)
        else:
            tell()

    def end_all(self, cause: FinishReason, refusal: Refusal) -> None:
        """End every open answer early, and cancel what still runs for it."""
        for answer in self._open:
            self._apply(answer, answer.session.close(cause, refusal))
        self._wake()

    # Accounts.

    def account(self) -> dict[str, int]:
        """What this process holds and has held: `sessions` are open answers, all else counts sequences."""
        return {"sessions": self.n_open, **self._sequences.counts()}

    def violations(self) -> list[str]:
        """Broken rules of this process' own tables, as sentences."""
        return self._sequences.violations()

    # Within.

    def _turn(self, event: Accepted | Rejected | Finished, now_s: float) -> None:
        """An event that begins or ends something."""
        match event:
            case Finished():
                self._finished(event, now_s)
            case Accepted():
                self._accepted(event)
            case Rejected():
                self._rejected(event)
            case _:
                assert_never(event)

    def _accepted(self, event: Accepted) -> None:
        self._sequences.n_accepted += 1
        route = self._sequences.route_of(event.rid)
        if route is None:
            return
        self._deliver(route, route.answer.accepted, event)
        if route.answer.session.is_accepted:
            self._log.info("accepted", request_id=route.answer.request_id, rid=event.rid)

    def _delta(self, event: Delta, now_s: float) -> None:
        route = self._sequences.route_of(event.rid)
        if route is None:
            self._metrics.tokens_dropped(len(event.token_ids))
            return
        if event.token_ids:
            self._measure(route, now_s)
        self._deliver(route, route.answer.delta, event)

    def _finished(self, event: Finished, now_s: float) -> None:
        # Out of its table before anything else: whatever the end sets off, this sequence needs no cancel any more.
        settled = self._sequences.settle(event.rid)
        if settled is None:
            return
        self._metrics.sequence_finished(event.reason)
        if isinstance(settled, Tombstone):
            self._metrics.close_to_release.observe(now_s - settled.since_s)
        else:
            self._deliver(settled, settled.answer.finished, event)

    def _rejected(self, event: Rejected) -> None:
        rejected = self._sequences.reject(event.rids)
        if rejected:
            self._metrics.request_rejected(event.refusal.code)
        routes = [one for one in rejected if isinstance(one, Route)]
        if routes:
            self._apply(routes[0].answer, routes[0].answer.session.rejected(event.refusal))

    def _deliver(self, route: Route, tell: Callable[[int, E], tuple[Effect, ...]], event: E) -> None:
        answer = route.answer
        try:
            effects = tell(route.index, event)
        except Exception:
            # A fault in the framing of one answer must not stop the loop that serves all of them.
            self._log.exception("framing failed", request_id=answer.request_id)
            effects = answer.session.close(FinishReason.ERROR, INTERNAL_ERROR)
        self._touched.add(answer)
        if effects:
            self._apply(answer, effects)

    def _apply(self, answer: Answer, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case CancelUpstream(rids, reason):
                    self._cancel(rids, reason)
                case EndResponse(refusal):
                    self._end(answer, refusal)
                case _:
                    assert_never(effect)

    def _end(self, answer: Answer, refusal: Refusal | None) -> None:
        self._touched.add(answer)
        try:
            n_dropped = answer.end(refusal)
        except Exception:
            self._log.exception("framing failed", request_id=answer.request_id)
            n_dropped = answer.end(INTERNAL_ERROR)
        self._metrics.tokens_dropped(n_dropped)

    def _cancel(self, rids: Iterable[Rid], reason: FinishReason) -> None:
        buried = self._sequences.bury(rids, reason, self._clock())
        if not buried:
            return
        try:
            self._push(Cancel(buried, reason))
        except PeerGone:
            pass  # what it held died with it; `peer_down` follows and clears the tombstones

    def _measure(self, route: Route, now_s: float) -> None:
        if route.last_token_s is None:
            self._metrics.time_to_first_token.observe(now_s - route.answer.opened_s)
            route.answer.first_token_s = route.answer.first_token_s or now_s
        else:
            self._metrics.inter_token.observe(now_s - route.last_token_s)
        route.last_token_s = now_s

    def _log_end(self, answer: Answer) -> None:
        named = {"request_id": answer.request_id, "reason": answer.outcome}
        if answer.head is not None and not answer.session.is_accepted:
            self._log.info("rejected", **named, status=answer.head.status)
            return
        first_s, usage = answer.first_token_s, answer.usage
        self._log.info(
            "finished",
            **named,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            first_token_s=None if first_s is None else round(first_s - answer.opened_s, 6),
            duration_s=round(self._clock() - answer.opened_s, 6),
        )

    def _wake(self) -> None:
        for answer in self._touched:
            answer.wake()
        self._touched.clear()
