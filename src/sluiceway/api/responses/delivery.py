"""What follows from the minds of answers: towards the engine, towards their readers, and as time goes by.

Whoever writes to a reader says here what was written, that there is no room, and that the reader has left. All of it is
synchronous: see `hub`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from structlog.typing import FilteringBoundLogger

from sluiceway.api.responses.agenda import Agenda
from sluiceway.api.responses.answer import Answer, Reader
from sluiceway.api.responses.registry import Streams
from sluiceway.api.responses.sequences import Sequences
from sluiceway.errors import PeerGone, Refusal
from sluiceway.ipc.messages.to_tokenizer import Cancel, FromApi, Park, Pause, Resume
from sluiceway.obs.metrics import Metrics
from sluiceway.refusals import INTERNAL_ERROR
from sluiceway.response.lifecycle import (
    CancelUpstream,
    Disconnect,
    Effect,
    EndReader,
    EndResponse,
    KeepAlive,
    ParkUpstream,
    PauseUpstream,
    ReaderId,
    ResumeUpstream,
    State,
)
from sluiceway.response.policy import Pressure
from sluiceway.response.replay import Place
from sluiceway.types import FinishReason, Rid

TICK_S = 0.25
"""How exactly the times of readers are kept: the shortest of them is a second or so."""
FREED_BYTES = 16 * 1024 * 1024
"""How much is freed with each tick: more than can be generated meanwhile, in some four milliseconds."""


class Delivery:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        push: Callable[[FromApi], None],
        clock: Callable[[], float],
        metrics: Metrics,
        log: FilteringBoundLogger,
        sequences: Sequences,
        streams: Streams,
    ) -> None:
        self._push = push
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._sequences = sequences
        self._streams = streams
        self._agenda: Agenda[Answer] = Agenda(TICK_S)
        self._touched: set[Answer] = set()
        self._is_waking = False
        self._when_empty: list[Callable[[], None]] = []
        self._when_timed: list[Callable[[], None]] = []
        streams.when_let_go = self._let_go

    # From readers.

    def attach(self, answer: Answer, place: Place, reader: Reader) -> ReaderId:
        """One more reader goes on from there; it must `leave`. The place is one that the answer's stream gave."""
        reader_id, effects = answer.stream.attached(place, self._clock())
        answer.readers[reader_id] = reader
        if reader_id > 1:
            self._metrics.stream_did("reattach")
        self._streams.reopen(answer)
        self.apply(answer, effects)
        self.watch(answer)
        return reader_id

    def written(self, answer: Answer, reader_id: ReaderId, unsent_bytes: int = 0) -> None:
        """What the reader took was handed to its transport, which holds so much."""
        effects = answer.stream.written(reader_id, self._clock(), unsent_bytes)
        self._count_delivered(answer)
        if effects:
            self.apply(answer, effects)
            self.wake()

    def watch(self, answer: Answer) -> None:
        """Something waits for a reader that has no room: from now on its time counts."""
        self._agenda.plan_next(answer)
        self._tell_if_timed()

    def leave(self, answer: Answer, reader_id: ReaderId) -> None:
        """Nobody writes to this reader any more. Cancels what runs for nobody else. Idempotent."""
        if answer.readers.pop(reader_id, None) is None:
            return
        was_open = answer.stream.state is State.OPEN
        self.apply(answer, answer.stream.lost(reader_id, self._clock()))
        if was_open and answer.stream.state is State.DETACHED:
            self._metrics.stream_did("detach")
        self.settle(answer)
        self.wake()

    # From the server.

    def close(self, answer: Answer, cause: FinishReason, refusal: Refusal | None = None) -> None:
        """End it early, and tell its readers why. Idempotent; `wake` follows."""
        self.apply(answer, answer.stream.close(cause, refusal))
        self.settle(answer)

    def tick(self) -> None:
        """Time has gone by: look at the answers to which that matters; where memory is short, at all of them. Some of
        what answers have released is freed: with each tick, so that no large answer holds others up when it goes."""
        self._streams.budget.free_some(FREED_BYTES)
        due = self._agenda.due(self._clock())
        if self._streams.budget.pressure is not Pressure.NONE:
            due = list({**dict.fromkeys(due), **dict.fromkeys(self._streams)})
        for answer in due:
            self.look_at(answer)
        self.wake()

    def look_at(self, answer: Answer) -> None:
        """Tell it the time and what its readers' transports hold; `wake` follows."""
        unsent = {reader_id: reader.unsent_bytes for reader_id, reader in answer.readers.items()}
        self.apply(answer, answer.stream.tick(self._clock(), unsent))
        self.settle(answer)

    def when_timed(self, tell: Callable[[], None]) -> None:
        """Call `tell` as soon as there is something to which time matters; at once if that is so now."""
        self._when_timed.append(tell)
        self._tell_if_timed()

    def when_empty(self, tell: Callable[[], None]) -> None:
        """Call `tell` as soon as no answer is open; at once if that is so now."""
        self._when_empty.append(tell)
        self._tell_if_empty()

    # From answers.

    def touch(self, answer: Answer) -> None:
        """Its readers may find something: `wake` follows."""
        self._touched.add(answer)

    def wake(self) -> None:
        """Let the readers of all that was touched take what there is. What that touches in turn has its turn too."""
        if self._is_waking:
            return
        self._is_waking = True
        try:
            while self._touched:
                for reader in [*self._touched.pop().readers.values()]:
                    reader.wake()
        finally:
            self._is_waking = False

    def apply(self, answer: Answer, effects: Iterable[Effect]) -> None:
        """Carry out what an answer's mind wants, in order."""
        for effect in effects:
            self._carry_out(answer, effect)
        if effects:
            self._count_undelivered(answer)
            self.watch(answer)

    def settle(self, answer: Answer) -> None:
        """Something of it has ended: count, log and let go what is over, and look at the rest when it is time to."""
        self._count_delivered(answer)
        self._count_undelivered(answer)
        if answer.is_over and not answer.is_logged:
            answer.is_logged = True
            answer.drop_gathered()
            self._log_end(answer)
        if self._streams.settle(answer, self._clock()):
            self._agenda.plan(answer, answer.stream.quiet_until_s)
        else:
            self._agenda.drop(answer)
        self._tell_if_empty()
        self._tell_if_timed()

    def _carry_out(self, answer: Answer, effect: Effect) -> None:
        match effect:
            case CancelUpstream(rids, reason):
                self._cancel(answer, rids, reason)
            case PauseUpstream() | ParkUpstream() | ResumeUpstream():
                self._regulate(effect)
            case EndResponse(reason, refusal):
                self._end(answer, reason, refusal)
            case EndReader(reader_id, reason):
                self._metrics.stream_did("drop")
                answer.stream.interject(reader_id, answer.last_word(reason))
                self.touch(answer)
            case KeepAlive(reader_id):
                answer.stream.interject(reader_id, answer.comment())
                self.touch(answer)
            case Disconnect(reader_id):
                self._metrics.stream_did("disconnect")
                answer.readers[reader_id].abort()
                self.touch(answer)
            case _:
                assert_never(effect)

    def _end(self, answer: Answer, reason: FinishReason, refusal: Refusal | None) -> None:
        if reason is FinishReason.SLOW_CLIENT:
            self._metrics.stream_did("drop")
        self.touch(answer)
        try:
            answer.end(reason, refusal, self._clock())
        except Exception:
            # A fault in the framing of one answer must not stop the loop that serves all of them.
            self._log.exception("framing failed", request_id=answer.order.request_id)
            answer.end(FinishReason.ERROR, INTERNAL_ERROR, self._clock())

    def _cancel(self, answer: Answer, rids: Iterable[Rid], reason: FinishReason) -> None:
        buried = self._sequences.bury(rids, reason, self._clock())
        if buried:
            self._send(Cancel(buried, reason))

    def _regulate(self, effect: PauseUpstream | ParkUpstream | ResumeUpstream) -> None:
        match effect:
            case PauseUpstream(rids):
                self._metrics.stream_did("pause")
                self._send(Pause(rids))
            case ParkUpstream(rids):
                self._metrics.stream_did("park")
                self._send(Park(rids))
            case ResumeUpstream(rids):
                self._metrics.stream_did("resume")
                self._send(Resume(rids))

    def _send(self, message: FromApi) -> None:
        try:
            self._push(message)
        except PeerGone:
            pass  # what it held died with it; that is told soon, and ends what it was about

    def _count_delivered(self, answer: Answer) -> None:
        n_delivered = answer.stream.n_delivered
        if n_delivered != answer.delivered_tokens:
            self._metrics.tokens_delivered(n_delivered - answer.delivered_tokens)
            answer.delivered_tokens = n_delivered

    def _count_undelivered(self, answer: Answer) -> None:
        n_undelivered = answer.stream.n_undelivered
        if n_undelivered != answer.undelivered_tokens:
            self._metrics.tokens_dropped(n_undelivered - answer.undelivered_tokens)
            answer.undelivered_tokens = n_undelivered

    def _let_go(self, answer: Answer) -> None:
        self._count_undelivered(answer)
        self._agenda.drop(answer)
        self._tell_if_timed()

    def _tell_if_timed(self) -> None:
        while self._when_timed and (self._agenda or self._streams.budget.has_rubble):
            self._when_timed.pop()()

    def _tell_if_empty(self) -> None:
        while self._when_empty and not self._streams.n_open:
            self._when_empty.pop()()

    def _log_end(self, answer: Answer) -> None:
        named = {
            "request_id": answer.order.request_id,
            "stream_id": answer.order.stream_id,
            "reason": answer.outcome,
        }
        if answer.is_refused:
            assert answer.head is not None
            self._log.info("rejected", **named, status=answer.head.status)
            return
        first_s, usage, opened_s = answer.first_token_s, answer.usage, answer.stream.opened_s
        self._log.info(
            "finished",
            **named,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            first_token_s=None if first_s is None else round(first_s - opened_s, 6),
            duration_s=round(self._clock() - opened_s, 6),
        )
