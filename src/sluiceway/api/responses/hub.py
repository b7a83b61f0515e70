"""The API process' mind: every open answer, and which of them each event from upstream belongs to.

Synchronous from end to end: nothing here waits, so cleanup that goes through here cannot be cancelled half way. It owns
no socket and no loop; messages leave through `push`, and readers are woken through what they are attached as.

What stands where upstream, and what has become of it, is in `Sequences`; what follows from events for readers is a
matter of `Delivery`. An event of an id that is not known is ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar, assert_never

import msgspec
from structlog.typing import FilteringBoundLogger

from sluiceway.api.responses.answer import Answer, Order, Reader
from sluiceway.api.responses.audits import Audits
from sluiceway.api.responses.delivery import Delivery
from sluiceway.api.responses.readiness import Readiness
from sluiceway.api.responses.registry import Streams
from sluiceway.api.responses.sequences import Route, Sequences, Tombstone
from sluiceway.config import StreamsConfig
from sluiceway.errors import PeerGone, Refusal, RequestError, invalid
from sluiceway.ipc.messages.to_api import (
    Accepted,
    AuditReport,
    Delta,
    EngineIsUp,
    Event,
    Events,
    Finished,
    Progressed,
    Rejected,
    ToApi,
)
from sluiceway.ipc.messages.to_child import Role
from sluiceway.ipc.messages.to_tokenizer import Cancel, Forget, Tokenize, TokenizeEncoded, ToTokenizer
from sluiceway.lengths import LengthBound
from sluiceway.obs.log import log_fault
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.generation import Generation
from sluiceway.refusals import DRAINING, INTERNAL_ERROR, MESSAGE_LOST, OVERLOADED, answer_too_large, lost, unavailable
from sluiceway.response.lifecycle import LIVE, Effect, ReaderId, State
from sluiceway.response.replay import START
from sluiceway.types import EngineFacts, FinishReason, Rid

QUIET_S = 5.0
"""Silence of a sequence after which tokenizer and engine are asked whether they know it."""

E = TypeVar("E", Accepted, Progressed, Delta, Finished)


class Hub:
    """See the module's docstring. `max_sequences` bounds those whose terminal has not come."""

    def __init__(
        self,
        *,
        push: Callable[[ToTokenizer], None],
        has_peer: Callable[[], bool],
        next_rid: Callable[[], Rid],
        clock: Callable[[], float],
        metrics: Metrics,
        log: FilteringBoundLogger,
        max_sequences: int,
        streams: StreamsConfig,
    ) -> None:
        self._push = push
        self._next_rid = next_rid
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._max_sequences = max_sequences
        self._sequences = Sequences()
        self._readiness = Readiness(has_peer)
        self.audits = Audits(push)
        self.streams = Streams(streams)
        self.delivery = Delivery(
            push=push, clock=clock, metrics=metrics, log=log, sequences=self._sequences, streams=self.streams
        )
        metrics.count_streams_by(self.streams.census)
        self._when_upstream: list[Callable[[], None]] = []
        self._roll_id: int | None = None
        """The question of the last roll call, as long as it is not answered."""
        self._missing: frozenset[Rid] = frozenset()
        """Sequences that neither tokenizer nor engine knew at the last roll call."""
        self.facts: EngineFacts | None = None
        """What the engine can hold; None before the first one has started."""
        self.length_bound = LengthBound()
        """How few tokens a text can become, as far as that is known."""

    @property
    def now_s(self) -> float:
        """By the clock that the times of all answers are of."""
        return self._clock()

    @property
    def n_open(self) -> int:
        """Answers that generate, or that some client waits for or reads."""
        return self.streams.n_open

    @property
    def unready(self) -> Refusal | None:
        """Why nothing new can be served now; None if it can."""
        return self._readiness.refusal

    @property
    def is_served(self) -> bool:
        """Whether tokenizer and engine are there to answer, be it only what is open already."""
        return self._readiness.serves

    # From clients.

    def open(self, order: Order, reader: Reader) -> tuple[Answer, ReaderId]:
        """Send a request upstream; its reader must `leave`. Raises `RequestError`, and holds nothing."""
        self._check_size(order)
        self._check_room(order.generation.n_choices)
        self.streams.check_free(order.stream_id, order.caller)
        generation = order.generation
        rids = tuple(self._next_rid() for _ in range(generation.n_choices))
        kept = dataclasses.replace(order, generation=generation.without_text())
        answer = Answer(kept, rids, self.streams.budget, self._clock())
        try:
            self._push(_tokenize(generation, rids))
        except PeerGone:
            raise RequestError(unavailable("tokenizer")) from None
        self._sequences.open(answer, rids)
        while self._when_upstream:
            self._when_upstream.pop()()
        self.streams.add(answer)
        return answer, self.delivery.attach(answer, START, reader)

    def cancel(self, answer: Answer, tell: Callable[[], None]) -> None:
        """End it, and call `tell` when nothing of it is held upstream; at once if that is so now. Idempotent."""
        self.delivery.close(answer, FinishReason.CANCELLED)
        self.delivery.wake()
        answer.when_released(tell)

    # From upstream.

    def receive(self, message: ToApi) -> None:
        """Route what one message brought, then wake each answer that it touched, once."""
        match message:
            case Events(events=events, stats=stats, wasted_tokens=n_wasted):
                now_s = self._clock()
                for event in events:
                    try:
                        if isinstance(event, Delta):  # nearly all are
                            self._delta(event, now_s)
                        else:
                            self._turn(event, now_s)
                    except Exception as error:
                        self._break_off(event, error)
                self._metrics.tokens_dropped(n_wasted)
                self.delivery.wake()
                if stats is not None:
                    self._metrics.engine_stepped(stats)
            case AuditReport():
                self.audits.answered(message)
            case EngineIsUp(facts, length_bound):
                self.facts, self.length_bound = facts, length_bound
                self._readiness.engine_heard()
            case _:
                assert_never(message)

    # Lost messages.

    def when_upstream(self, tell: Callable[[], None]) -> None:
        """Call `tell` as soon as there are sequences upstream; at once if that is so now."""
        if len(self._sequences):
            tell()
        else:
            self._when_upstream.append(tell)

    def call_roll(self) -> None:
        """Ask tokenizer and engine whether they know the sequences of which nothing was heard for `QUIET_S`.

        Call this every few seconds while there are any. A sequence that neither knows at two roll calls in a row is
        lost, and ends; a cancelled one that still lives gets its cancel again. Pipes keep their order, so an answer
        comes after all that was on its way, and a sequence that only waits, however long, is known.
        """
        if self._roll_id is not None:
            self.audits.forget(self._roll_id)
            self._roll_id = None
        before_s = self._clock() - QUIET_S
        asked = frozenset(self._sequences.quiet(before_s))
        self._missing &= asked
        if asked and self._readiness.serves:
            try:
                self._roll_id = self.audits.ask(lambda report: self._roll_called(asked, before_s, report))
            except PeerGone:
                pass  # what it held died with it; the supervisor reports that soon

    def _roll_called(self, asked: frozenset[Rid], before_s: float, report: AuditReport) -> None:
        self._roll_id = None
        known = {one.rid for one in report.live}.union(report.encoding)
        missing = frozenset(rid for rid in asked if rid in self._sequences) - known
        lost, self._missing = sorted(missing & self._missing), missing - self._missing
        if lost:
            self._push_or_pass(Forget(tuple(lost)))
            for rid in lost:
                self._end_lost(rid)
        for rid in sorted(asked & known):
            tombstone = self._sequences.tombstone_of(rid)
            if tombstone is not None and tombstone.since_s < before_s:
                self._sequences.n_lost_cancels += 1
                self._log.warning("cancel lost", rid=rid, stream_id=tombstone.answer.order.stream_id)
                self._push_or_pass(Cancel((rid,), tombstone.reason))
        self.delivery.wake()

    def _end_lost(self, rid: Rid) -> None:
        if rid not in self._sequences:  # the end of another choice of its answer has ended it
            return
        self._sequences.n_lost += 1
        self._metrics.lost_sequences += 1
        tombstone = self._sequences.tombstone_of(rid)
        self._log.warning("sequence lost", rid=rid, was_cancelled=tombstone is not None)
        reason = FinishReason.ERROR if tombstone is None else tombstone.reason
        self._finished(Finished(rid=rid, reason=reason, completion_tokens=0, refusal=MESSAGE_LOST), self._clock())

    def _push_or_pass(self, message: Cancel | Forget) -> None:
        try:
            self._push(message)
        except PeerGone:
            pass

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
        for one in self._sequences.settle_all():
            self._metrics.sequence_finished(one.reason if isinstance(one, Tombstone) else FinishReason.ERROR)
            one.answer.released(None)
        self.end_all(FinishReason.ERROR, lost(role.value))

    def process_measured(self, process: str, longest_gap_s: float, n_dropped: int) -> None:
        """What a process says of itself, for the metrics."""
        self._metrics.process_measured(process, longest_gap_s, n_dropped)

    def drain(self) -> None:
        """Open nothing new; what is open and read goes on, what nobody reads ends. Idempotent."""
        if self.unready is DRAINING:
            return
        self._readiness.drain()
        self._log.info("draining", n_open=self.n_open)
        for answer in self.streams:
            if answer.stream.state is State.DETACHED:
                self.delivery.close(answer, FinishReason.DRAINING, DRAINING)

    def when_empty(self, tell: Callable[[], None]) -> None:
        """Call `tell` as soon as no answer is open; at once if that is so now."""
        self.delivery.when_empty(tell)

    def end_all(self, cause: FinishReason, refusal: Refusal) -> None:
        """End every answer that generates, and cancel what still runs for it."""
        for answer in self.streams:
            if answer.stream.state in LIVE:
                self.delivery.close(answer, cause, refusal)
        self.delivery.wake()

    # Accounts.

    def account(self) -> dict[str, int]:
        """What this process holds and has held: `sessions` are open answers, all else counts sequences."""
        return {"sessions": self.n_open, **self._sequences.counts()}

    def violations(self) -> list[str]:
        """Broken rules of this process' own tables, as sentences."""
        return self._sequences.violations()

    # Within.

    def _check_room(self, n: int) -> None:
        if n > self._max_sequences:  # no waiting cures that
            raise invalid(f"This server takes at most {self._max_sequences} choices at once, not {n}.", "n")
        refusal = self.unready
        if refusal is None and len(self._sequences) + n > self._max_sequences:
            refusal = OVERLOADED
        if refusal is not None:
            raise RequestError(refusal)

    def _check_size(self, order: Order) -> None:
        """Refuse what would be too large for certain, before it is generated: if it has all the tokens it asks for."""
        sampling = order.generation.sampling
        if order.generation.stream or sampling.logprobs is None or sampling.max_tokens is None:
            return
        n_logprobs = order.generation.n_choices * sampling.max_tokens * max(1, sampling.logprobs)
        max_bytes = self.streams.budget.max_answer_bytes
        if n_logprobs * order.framer.least_logprob_bytes > max_bytes:
            raise RequestError(answer_too_large(max_bytes, "max_tokens"))

    def _break_off(self, event: Event, error: Exception) -> None:
        """A fault in what one event sets off ends the answer that it is about; the others are about other answers."""
        log_fault(self._log, "event failed", error, kind=type(event).__name__)
        for rid in event.rids if isinstance(event, Rejected) else (event.rid,):
            route = self._sequences.route_of(rid)
            if route is not None:
                self.delivery.close(route.answer, FinishReason.ERROR, INTERNAL_ERROR)

    def _turn(self, event: Accepted | Rejected | Progressed | Finished, now_s: float) -> None:
        """An event that begins or ends something, or tells of one that has not begun."""
        match event:
            case Finished():
                self._finished(event, now_s)
            case Accepted():
                self._accepted(event)
            case Rejected():
                self._rejected(event)
            case Progressed(rid):
                if (route := self._sequences.route_of(rid)) is not None:
                    self._deliver(route, route.answer.progressed, event)
            case _:
                assert_never(event)

    def _accepted(self, event: Accepted) -> None:
        self._sequences.n_accepted += 1
        route = self._sequences.route_of(event.rid)
        if route is None:
            return
        answer = route.answer
        self._deliver(route, answer.accepted, event)
        if answer.stream.is_accepted:
            self._log.info(
                "accepted", request_id=answer.order.request_id, stream_id=answer.order.stream_id, rid=event.rid
            )

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
        settled.answer.released(event.held)
        if isinstance(settled, Tombstone):
            self._metrics.sequence_released(settled.reason, now_s - settled.since_s)
        else:
            self._deliver(settled, settled.answer.finished, event)

    def _rejected(self, event: Rejected) -> None:
        rejected = self._sequences.reject(event.rids)
        if rejected:
            self._metrics.request_rejected(event.refusal.code)
        for one in rejected:
            one.answer.released(None)
        routes = [one for one in rejected if isinstance(one, Route)]
        if routes:
            answer = routes[0].answer
            self.delivery.apply(answer, answer.stream.rejected(event.refusal))

    def _deliver(self, route: Route, tell: Callable[[int, E], tuple[Effect, ...]], event: E) -> None:
        answer = route.answer
        try:
            effects = tell(route.index, event)
        except Exception:
            # A fault in the framing of one answer must not stop the loop that serves all of them.
            self._log.exception("framing failed", request_id=answer.order.request_id)
            effects = answer.stream.close(FinishReason.ERROR, INTERNAL_ERROR)
        self.delivery.touch(answer)
        if effects:
            self.delivery.apply(answer, effects)

    def _measure(self, route: Route, now_s: float) -> None:
        if route.last_token_s is None:
            self._metrics.time_to_first_token.observe(now_s - route.answer.stream.opened_s)
            route.answer.first_token_s = route.answer.first_token_s or now_s
        else:
            self._metrics.inter_token.observe(now_s - route.last_token_s)
        route.last_token_s = now_s


def _tokenize(generation: Generation, rids: tuple[Rid, ...]) -> Tokenize | TokenizeEncoded:
    is_watched = generation.wishes.progress is not None
    sampling, stop, encoded = generation.sampling, generation.stop, generation.encoded_prompts
    if encoded is None:
        return Tokenize(rids=rids, prompts=generation.prompts, sampling=sampling, stop=stop, is_watched=is_watched)
    prompts = msgspec.Raw(encoded)
    return TokenizeEncoded(rids=rids, prompts=prompts, sampling=sampling, stop=stop, is_watched=is_watched)
