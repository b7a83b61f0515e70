"""Brings each event of the engine to the response that it belongs to, and opens responses for new requests.

Everything here is synchronous: no method waits, so cleanup that runs here cannot be cancelled half way. The dispatcher
owns no socket and no loop. Messages leave through `push`, and the registry wakes the writers of responses.

A sequence is in the table of routes from `Tokenize` until its terminal event. A route is *cancelled* when its response
ended early: its cancel is on the way, and its response wants no more events. Events of unknown sequences are ignored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

import msgspec
from structlog.typing import FilteringBoundLogger

from sluiceway.api.responses.audits import Audits
from sluiceway.api.responses.registry import ResponseRegistry
from sluiceway.api.responses.response import Response, ResponseContext, ResponseSpec, ResponseWriter, Signal
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
from sluiceway.ipc.messages.to_tokenizer import Cancel, Forget, FromApi, Tokenize, TokenizeEncoded, ToTokenizer
from sluiceway.lengths import LengthBound
from sluiceway.obs.log import log_fault
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.generation import GenerationRequest
from sluiceway.protocols.common.reading import PromptRoom
from sluiceway.refusals import (
    DRAINING,
    INTERNAL_ERROR,
    LOADING,
    MESSAGE_LOST,
    OVERLOADED,
    answer_too_large,
    lost,
    unavailable,
)
from sluiceway.response.backlog import START
from sluiceway.response.lifecycle import LIVE, ReaderId, State
from sluiceway.types import EngineFacts, FinishReason, Rid

QUIET_S = 5.0
"""After this silence of a sequence, tokenizer and engine are asked whether they know it."""

_NEEDED = (Role.TOKENIZER, Role.ENGINE)
"""The processes that a request passes through, in that order."""


@dataclass(slots=True)
class Route:
    """Where the events of one sequence go. `index` is the number of the choice in its response."""

    response: Response
    index: int
    last_token_s: float | None = None
    """When its last token came; None before the first."""
    cancel_reason: FinishReason | None = None
    """Why it was cancelled; None while its response wants its events."""
    cancelled_s: float = 0.0

    @property
    def last_news_s(self) -> float:
        """When something was heard of it, or it was cancelled, or else when its request was sent."""
        if self.cancel_reason is not None:
            return self.cancelled_s
        return self.response.stream.opened_s if self.last_token_s is None else self.last_token_s


class Dispatcher:
    """The routes of all sequences, and which of the other processes serve.

    `max_sequences` bounds the sequences whose terminal event has not come. `has_peer` says whether the pipe to the
    tokenizer is connected now. What the supervisor says of a process can come before the pipes are connected: a request
    that is sent then would find no pipe.
    """

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
        self._has_peer = has_peer
        self._next_rid = next_rid
        self.clock = clock
        """Monotonic, seconds: all times of responses are of this clock."""
        self._metrics = metrics
        self._log = log
        self._max_sequences = max_sequences
        self._routes: dict[Rid, Route] = {}
        self._n_submitted = self._n_accepted = self._n_rejected = self._n_finished = 0
        self._n_lost = self._n_lost_cancels = 0
        self._roll_id: int | None = None
        """The audit query of the last roll call, while it is not answered."""
        self._missing: frozenset[Rid] = frozenset()
        """Sequences that neither tokenizer nor engine knew at the last roll call."""
        self._up: set[Role] = set()
        self._hung: set[Role] = set()
        self._is_engine_heard = self._has_served = self._is_draining = False
        self.facts: EngineFacts | None = None
        """What the engine can hold; None before the first engine has started."""
        self.length_bound = LengthBound()
        """How few tokens a text can become, as far as that is known."""
        self.audits = Audits(push)
        self.registry = ResponseRegistry(streams, clock)
        self.has_sequences = Signal(holds=False)
        """Holds while tokenizer or engine have a sequence."""
        self._context = ResponseContext(upstream=self, registry=self.registry, metrics=metrics, log=log, clock=clock)
        metrics.count_streams_by(self.registry.census)

    # Whether the server can take requests.

    @property
    def refusal(self) -> Refusal | None:
        """Why no new request can be served now; None if it can."""
        if self._is_draining:
            return DRAINING
        if self.serves:
            return None
        return self._missing_process if self._has_served else LOADING

    @property
    def serves(self) -> bool:
        """True when every process that a request passes through serves and can be reached."""
        return self._should_serve and self._has_peer()

    @property
    def _should_serve(self) -> bool:
        return self._up.issuperset(_NEEDED) and self._is_engine_heard and not self._hung

    @property
    def _missing_process(self) -> Refusal:
        """Name the process that cannot serve, and say why."""
        for role in _NEEDED:
            if role not in self._up:
                return unavailable(role.value)
            if role in self._hung:
                return unavailable(role.value, "does not respond")
        role = Role.ENGINE if self._has_peer() else Role.TOKENIZER
        return unavailable(role.value, "is not connected")

    @property
    def prompt_room(self) -> PromptRoom:
        """How long a prompt may be, as far as that is known."""
        return PromptRoom(None if self.facts is None else self.facts.max_sequence_tokens, self.length_bound)

    # From clients.

    def open(self, spec: ResponseSpec, writer: ResponseWriter) -> tuple[Response, ReaderId]:
        """Send a request to the tokenizer. Its writer must call `leave`. Holds nothing if it raises `RequestError`."""
        generation, registry = spec.generation, self.registry
        self._check_size(spec)
        self._check_room(generation.n_choices)
        registry.check_free(spec.stream_id, spec.caller)
        rids = tuple(self._next_rid() for _ in range(generation.n_choices))
        response = Response(dataclasses.replace(spec, generation=generation.without_text()), rids, self._context)
        try:
            self._push(_tokenize(generation, rids))
        except PeerGone:
            raise RequestError(unavailable("tokenizer")) from None
        for index, rid in enumerate(rids):
            self._routes[rid] = Route(response, index)
        self._n_submitted += len(rids)
        if not self.has_sequences.holds:
            self.has_sequences.set(True)
        registry.add(response)
        return response, response.attach(START, writer)

    # From responses.

    def cancel(self, rids: Iterable[Rid], reason: FinishReason) -> None:
        """Cancel those of these sequences that still run. Their responses want no more events of them."""
        now_s = self.clock()
        cancelled = []
        for rid in rids:
            route = self._routes.get(rid)
            if route is not None and route.cancel_reason is None:
                route.cancel_reason, route.cancelled_s = reason, now_s
                cancelled.append(rid)
        if cancelled:
            self.send(Cancel(tuple(cancelled), reason))

    def send(self, message: FromApi) -> None:
        """Send, or drop the message if the tokenizer is gone: the supervisor reports that soon, which ends all."""
        try:
            self._push(message)
        except PeerGone:
            pass

    # From the engine.

    def receive(self, message: ToApi) -> None:
        """Bring each event of a message to its response; then wake each response that has something to write, once."""
        match message:
            case Events():
                self._route_all(message.events)
                self.registry.wake()
                if message.wasted_tokens:
                    self._metrics.wasted_tokens.value += message.wasted_tokens
                if message.stats is not None:
                    self._metrics.engine_stepped(message.stats)
            case AuditReport():
                self.audits.answered(message)
            case EngineIsUp(facts, length_bound):
                self.facts, self.length_bound = facts, length_bound
                self._is_engine_heard = True
                self._has_served = self._has_served or self._should_serve
            case _:
                assert_never(message)

    # Lost messages.

    def call_roll(self) -> None:
        """Ask tokenizer and engine whether they know the sequences that were silent for `QUIET_S`.

        Call this every few seconds while there are sequences. A sequence that neither process knows at two roll calls
        in a row is lost, and ends. A cancelled sequence that still runs is cancelled again. Pipes keep their order, so
        the report comes after everything that was on its way; a sequence that only waits is known.
        """
        if self._roll_id is not None:
            self.audits.forget(self._roll_id)
            self._roll_id = None
        self.has_sequences.set(bool(self._routes))
        before_s = self.clock() - QUIET_S
        asked = frozenset(rid for rid, route in self._routes.items() if route.last_news_s < before_s)
        self._missing &= asked
        if asked and self.serves:
            try:
                self._roll_id = self.audits.ask(lambda report: self._roll_called(asked, before_s, report))
            except PeerGone:
                pass  # the supervisor reports that soon, which ends all

    def _roll_called(self, asked: frozenset[Rid], before_s: float, report: AuditReport) -> None:
        self._roll_id = None
        known = {one.rid for one in report.live}.union(report.encoding)
        missing = frozenset(rid for rid in asked if rid in self._routes) - known
        lost, self._missing = sorted(missing & self._missing), missing - self._missing
        if lost:
            self.send(Forget(tuple(lost)))
            for rid in lost:
                self._end_lost(rid)
        for rid in sorted(asked & known):
            route = self._routes.get(rid)
            if route is not None and route.cancel_reason is not None and route.cancelled_s < before_s:
                self._n_lost_cancels += 1
                self._log.warning("cancel lost", rid=rid, stream_id=route.response.spec.stream_id)
                self.send(Cancel((rid,), route.cancel_reason))
        self.registry.wake()

    def _end_lost(self, rid: Rid) -> None:
        route = self._routes.get(rid)
        if route is None:  # the end of another choice of the same response has ended it
            return
        self._n_lost += 1
        self._metrics.lost_sequences.value += 1
        self._log.warning("sequence lost", rid=rid, was_cancelled=route.cancel_reason is not None)
        reason = route.cancel_reason or FinishReason.ERROR
        self._finish(Finished(rid=rid, reason=reason, completion_tokens=0, refusal=MESSAGE_LOST), self.clock())

    # From the supervisor.

    def peer_up(self, role: Role) -> None:
        """Note that a process serves, perhaps again."""
        self._up.add(role)
        self._hung.discard(role)
        self._has_served = self._has_served or self._should_serve
        if role is Role.ENGINE:
            self._metrics.engine_started()
        self._log.info("peer up", role=role.value)

    def peer_down(self, role: Role, *, hung: bool) -> None:
        """Note that a process hangs, or that it died. After a death every open response ends: no event will come."""
        self._log.warning("peer down", role=role.value, hung=hung, n_open=self.registry.n_open)
        if hung:
            self._hung.add(role)
            return
        self._up.discard(role)
        self._hung.discard(role)
        # The engine sends `EngineIsUp` when it has a new pipe to this process. Before that, a request may find no pipe.
        self._is_engine_heard = False
        if role is Role.ENGINE:
            self._metrics.engine_died()
        routes = [*self._routes.values()]
        self._routes.clear()
        self._n_finished += len(routes)
        for route in routes:
            self._metrics.requests_finished[route.cancel_reason or FinishReason.ERROR].value += 1
            route.response.note_released(None)
        self.end_all(FinishReason.ERROR, lost(role.value))

    def drain(self) -> None:
        """Refuse new requests. Responses that a client reads go on; detached ones end. Idempotent."""
        if self._is_draining:
            return
        self._is_draining = True
        self._log.info("draining", n_open=self.registry.n_open)
        for response in self.registry:
            if response.stream.state is State.DETACHED:
                response.close(FinishReason.DRAINING, DRAINING)

    def end_all(self, cause: FinishReason, refusal: Refusal) -> None:
        """End every response that generates, and cancel its sequences."""
        for response in self.registry:
            if response.stream.state in LIVE:
                response.close(cause, refusal)
        self.registry.wake()

    # For `/stats`.

    def account(self) -> dict[str, int]:
        """What this process holds and has held. `sessions` counts open responses, everything else sequences.

        `finished` counts terminal events; a sequence that was rejected has none.
        """
        n_cancelled = sum(route.cancel_reason is not None for route in self._routes.values())
        return {
            "sessions": self.registry.n_open,
            "live": len(self._routes) - n_cancelled,
            "tombstones": n_cancelled,
            "submitted": self._n_submitted,
            "accepted": self._n_accepted,
            "rejected": self._n_rejected,
            "finished": self._n_finished,
        }

    def violations(self) -> list[str]:
        """Every broken rule of the tables of this process, as a sentence."""
        broken = []
        if self._n_lost:
            broken.append(f"api: {self._n_lost} sequences were lost between processes, and ended")
        if self._n_lost_cancels:
            broken.append(f"api: {self._n_lost_cancels} cancels were lost between processes, and repeated")
        n_known = self._n_rejected + self._n_finished + len(self._routes)
        if self._n_submitted != n_known:
            account = self.account()
            broken.append(
                f"api: {self._n_submitted} sequences were submitted, but {self._n_rejected} rejected"
                f" + {self._n_finished} finished + {account['live']} live"
                f" + {account['tombstones']} cancelled are {n_known}"
            )
        return broken

    # Within.

    def _check_room(self, n_choices: int) -> None:
        if n_choices > self._max_sequences:  # waiting does not help
            raise invalid(f"This server takes at most {self._max_sequences} choices at once, not {n_choices}.", "n")
        refusal = self.refusal
        if refusal is None and len(self._routes) + n_choices > self._max_sequences:
            refusal = OVERLOADED
        if refusal is not None:
            raise RequestError(refusal)

    def _check_size(self, spec: ResponseSpec) -> None:
        """Refuse an answer with logprobs that would be too large if it had all the tokens that it asks for."""
        sampling = spec.generation.sampling
        if spec.generation.stream or sampling.logprobs is None or sampling.max_tokens is None:
            return
        n_logprobs = spec.generation.n_choices * sampling.max_tokens * max(1, sampling.logprobs)
        max_bytes = self.registry.budget.max_answer_bytes
        if n_logprobs * spec.framer.least_logprob_bytes > max_bytes:
            raise RequestError(answer_too_large(max_bytes, "max_tokens"))

    def _fail(self, event: Event, error: Exception) -> None:
        """End the response of an event that could not be handled. The other events belong to other responses."""
        log_fault(self._log, "event failed", error, kind=type(event).__name__)
        for rid in event.rids if isinstance(event, Rejected) else (event.rid,):
            route = self._routes.get(rid)
            if route is not None and route.cancel_reason is None:
                route.response.close(FinishReason.ERROR, INTERNAL_ERROR)

    def _route_all(self, events: Iterable[Event]) -> None:
        now_s = self.clock()
        routes, metrics = self._routes, self._metrics
        for event in events:
            try:
                if isinstance(event, Finished):
                    self._finish(event, now_s)
                    continue
                if not isinstance(event, Delta):  # most events are deltas, so those take no further call here
                    self._route(event)
                    continue
                route = routes.get(event.rid)
                if route is None or route.cancel_reason is not None:
                    metrics.wasted_tokens.value += len(event.token_ids)
                    continue
                if event.token_ids:
                    if route.last_token_s is None:
                        metrics.time_to_first_token_seconds.observe(now_s - route.response.stream.opened_s)
                        route.response.token_came(now_s)
                    else:
                        metrics.inter_token_seconds.observe(now_s - route.last_token_s)
                    route.last_token_s = now_s
                route.response.delta(route.index, event)
            except Exception as error:
                self._fail(event, error)

    def _route(self, event: Accepted | Rejected | Progressed) -> None:
        match event:
            case Accepted():
                self._accept(event)
            case Rejected():
                self._reject(event)
            case Progressed(rid):
                route = self._routes.get(rid)
                if route is not None and route.cancel_reason is None:
                    route.response.progressed(event)
            case _:
                assert_never(event)

    def _accept(self, event: Accepted) -> None:
        self._n_accepted += 1
        route = self._routes.get(event.rid)
        if route is None or route.cancel_reason is not None:
            return
        response = route.response
        response.accepted(route.index, event)
        if response.stream.is_accepted:
            spec = response.spec
            self._log.info("accepted", request_id=spec.request_id, stream_id=spec.stream_id, rid=event.rid)

    def _finish(self, event: Finished, now_s: float) -> None:
        # Removed before anything else: whatever the end causes, this sequence needs no cancel any more.
        route = self._routes.pop(event.rid, None)
        if route is None:
            return
        self._n_finished += 1
        self._metrics.requests_finished[event.reason].value += 1
        route.response.note_released(event.held)
        if route.cancel_reason is None:
            try:
                route.response.finished(route.index, event)
            except Exception:
                route.response.close(FinishReason.ERROR, INTERNAL_ERROR)
                raise
        else:
            self._metrics.close_to_release_seconds[route.cancel_reason].observe(now_s - route.cancelled_s)

    def _reject(self, event: Rejected) -> None:
        routes = [route for rid in event.rids if (route := self._routes.pop(rid, None)) is not None]
        self._n_rejected += len(routes)
        if routes:
            self._metrics.requests_rejected[event.refusal.code].value += 1
        for route in routes:
            route.response.note_released(None)
        wanted = [route for route in routes if route.cancel_reason is None]
        if wanted:
            wanted[0].response.rejected(event.refusal)


def _tokenize(generation: GenerationRequest, rids: tuple[Rid, ...]) -> Tokenize | TokenizeEncoded:
    is_watched = generation.stream_options.progress is not None
    sampling, stop, encoded = generation.sampling, generation.stop, generation.encoded_prompts
    if encoded is None:
        return Tokenize(rids=rids, prompts=generation.prompts, sampling=sampling, stop=stop, is_watched=is_watched)
    prompts = msgspec.Raw(encoded)
    return TokenizeEncoded(rids=rids, prompts=prompts, sampling=sampling, stop=stop, is_watched=is_watched)
