"""One response: it frames the events of its sequences, and carries out what its stream decides.

Everything here is synchronous. Events come from the dispatcher; writers take what waits for their clients. No method
waits, so cleanup that runs here cannot be cancelled half way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import msgspec
from structlog.typing import FilteringBoundLogger

from sluiceway.api.http.head import Head, json_head, refusal_head, stream_head, stream_id_header
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Delta, Finished, Progressed
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.ipc.messages.to_tokenizer import FromApi
from sluiceway.obs.metrics import Metrics
from sluiceway.protocols.common.ends import refusal_of_end, usual_refusal
from sluiceway.protocols.common.generation import Framer, GenerationRequest, TokenUsage
from sluiceway.protocols.common.progress import progress_comment, progress_event
from sluiceway.refusals import INTERNAL_ERROR
from sluiceway.response.backlog import Cursor
from sluiceway.response.budget import Budget
from sluiceway.response.history import StreamRecord
from sluiceway.response.lifecycle import (
    LIVE,
    CancelSequences,
    Disconnect,
    Effect,
    EndReader,
    EndResponse,
    KeepAlive,
    ReaderId,
    State,
)
from sluiceway.response.stream import Stream
from sluiceway.response.terms import StreamTerms
from sluiceway.sse.encoder import encode_comment, number_events
from sluiceway.types import FinishReason, Flow, Held, Rid

GOOD_REASONS = frozenset({FinishReason.STOP, FinishReason.LENGTH})
"""With these a sequence finished by itself."""

_FLOW_ACTIONS = {Flow.RUN: "resume", Flow.PAUSE: "pause", Flow.PARK: "park"}
"""What the metrics call a change of the flow."""


class Signal:
    """A condition, and the functions that wait for it. Unlike `asyncio.Event` it needs no loop."""

    __slots__ = ("_waiting", "holds")

    def __init__(self, *, holds: bool) -> None:
        self.holds = holds
        self._waiting: list[Callable[[], None]] = []

    def set(self, holds: bool) -> None:
        """Note whether the condition holds now. If it does, call the waiting functions."""
        self.holds = holds
        while self._waiting and self.holds:
            self._waiting.pop()()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the condition holds; immediately if it holds now."""
        if self.holds:
            callback()
        else:
            self._waiting.append(callback)


class ResponseWriter(Protocol):
    """Writes a response to one client."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that its transport holds."""

    def wake(self) -> None:
        """Take what waits. Called after each change that may have added something, or removed the reader."""

    def write_now(self, frame: bytes) -> int | None:
        """Write this event if there is room, and return the bytes that the transport holds; None if it was not written.

        Only for a reader that has every event before this one.
        """

    def abort(self) -> None:
        """Break the connection off."""


class Upstream(Protocol):
    """The way to the tokenizer and the engine."""

    def cancel(self, rids: Iterable[Rid], reason: FinishReason) -> None:
        """Cancel those of these sequences that still run."""

    def send(self, message: FromApi) -> None:
        """Send, or drop the message if the other process is gone: then its sequences end anyway."""


class Registry(Protocol):
    """Where responses are found again. It wakes their writers and watches their times."""

    budget: Budget
    touched: set[Response]
    """Responses whose writers are woken next."""

    def opened(self, response: Response) -> None:
        """Note that the response has a reader."""

    def changed(self, response: Response, *, is_over: bool) -> None:
        """Note whether the response is over. It may also have another time at which to look at it."""

    def watch(self, response: Response) -> None:
        """Look at the response at the next tick: something waits for a reader without room."""

    def wake(self) -> None:
        """Wake the writers of every touched response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseContext:
    """What all responses of a process share. `clock` is monotonic, in seconds."""

    upstream: Upstream
    registry: Registry
    metrics: Metrics
    log: FilteringBoundLogger
    clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSpec:
    """What to generate, how to frame it, and for which caller. `stream_id` is chosen by the caller, or new."""

    generation: GenerationRequest
    framer: Framer
    error_body: Callable[[Refusal], bytes]
    terms: StreamTerms
    request_id: str
    stream_id: str
    caller: str = ""
    has_key: bool = False
    """True when the request came with an idempotency key."""


class Response:
    """One response, streamed or whole: its framing, its readers, its stream, and what it holds in the engine.

    Its writers send `head` as soon as there is one, and then what the stream has for each of them.
    """

    __slots__ = (
        "_cached_tokens",
        "_completion_tokens",
        "_context",
        "_counted_delivered",
        "_counted_undelivered",
        "_error_code",
        "_finished",
        "_first_token_s",
        "_framer",
        "_is_logged",
        "_is_single",
        "_is_streamed",
        "_n_upstream",
        "_prompt_tokens",
        "head",
        "held",
        "is_numbered",
        "released",
        "spec",
        "stream",
        "writers",
    )

    def __init__(self, spec: ResponseSpec, rids: Sequence[Rid], context: ResponseContext) -> None:
        self.spec = spec
        self._context = context
        self._framer = spec.framer
        self._is_streamed = spec.generation.stream
        self._is_single = len(rids) == 1
        """True with one choice. The events of several that come together are written together."""
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._finished: dict[int, Finished] = {}
        self.stream = Stream(rids, spec.terms, context.registry.budget, context.clock())
        self.is_numbered = self._is_streamed and spec.terms.retention is not None
        """True when its events carry ids and can be read again."""
        self.writers: dict[ReaderId, ResponseWriter] = {}
        """The writer of each reader that has yet to leave."""
        self._first_token_s: float | None = None
        self.head: Head | None = None
        self._error_code: str | None = None
        self._is_logged = False
        self._counted_delivered = self._counted_undelivered = 0
        self._n_upstream = len(rids)
        """Sequences that the engine or the tokenizer may still hold."""
        self.held: list[Held] = []
        """What its sequences held when they were released, as far as that is known."""
        self.released = Signal(holds=False)
        """Holds when no other process holds anything of this response."""

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far."""
        return TokenUsage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)

    @property
    def outcome(self) -> str:
        """Why the response ended, for the log. While it has not ended, a client that leaves is the reason."""
        reason = None if self.stream.state in LIVE else self.stream.reason
        return self._error_code or (reason or FinishReason.DISCONNECTED).value

    @property
    def is_over(self) -> bool:
        """True when no sequence runs and no client reads."""
        return not self.writers and self.stream.state not in LIVE

    @property
    def is_refused(self) -> bool:
        """True when the client gets an error status instead of an answer."""
        return self.head is not None and self.head.status >= 400

    @property
    def is_broken(self) -> bool:
        """True when the response ended otherwise than well: refused, cancelled, disconnected, or by a fault."""
        stream = self.stream
        return stream.state not in LIVE and stream.reason not in GOOD_REASONS

    @property
    def record(self) -> StreamRecord:
        """The state of the response now."""
        stream, backlog = self.stream, self.stream.backlog
        delivered, undelivered = backlog.n_delivered, backlog.n_undelivered
        return StreamRecord(
            stream_id=self.spec.stream_id,
            state=stream.state.value,
            reason=None if stream.reason is None else stream.reason.value,
            generated_tokens=delivered + undelivered + backlog.n_waiting,
            delivered_tokens=delivered,
            wasted_tokens=undelivered,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=self._cached_tokens,
            last_event_id=backlog.end.event_id,
            is_resumable=self.is_numbered,
            opened_s=stream.opened_s,
            ended_s=stream.ended_s,
        )

    # Events of its sequences. `index` is the number of the choice.

    def accepted(self, index: int, event: Accepted) -> None:
        """Begin the stream with the last acceptance: from then on an error is an event, not a status."""
        if index % self.spec.generation.n == 0:
            self._prompt_tokens += event.prompt_tokens
            self._cached_tokens += event.cached_tokens
        self.stream.accepted()
        if not self._is_streamed or not self.stream.is_accepted:
            return
        self.head = stream_head(self.spec.stream_id)
        *before, last = self._events(self._framer.start(self.usage))
        self._context.registry.touched.add(self)
        self._apply(self.stream.delivered(last, 0, before))

    def progressed(self, event: Progressed) -> None:
        """Show the progress to the readers of a stream that has begun. A later reader gets what is true then."""
        if self.head is not None:
            is_event = self.spec.generation.stream_options.progress == "events"
            progress = event.progress
            line = progress_event(progress) if is_event else self._comment(progress_comment(progress))
            self.stream.set_status_line(line)
            self._context.registry.touched.add(self)

    def delta(self, index: int, event: Delta) -> None:
        """Frame the text of a token, or of several."""
        n_tokens = len(event.token_ids)
        self._completion_tokens += n_tokens
        if self.is_numbered:
            *before, last = self._events(self._framer.delta(index, event))
            effects = self.stream.delivered(last, n_tokens, before)
        elif self._is_streamed:
            frame = self._framer.delta(index, event)
            if frame and self._is_single and self._write_now(frame, n_tokens):
                return
            effects = self.stream.delivered(frame, n_tokens)
        else:
            effects = self.stream.gathered(self._framer.gather(index, event), n_tokens)
        self._context.registry.touched.add(self)
        if effects:
            self._apply(effects)

    def _write_now(self, frame: bytes, n_tokens: int) -> bool:
        """Write an event straight to the only reader, if it has everything. Most events go this way."""
        stream = self.stream
        reader_id = stream.idle_reader
        if reader_id is None:
            return False
        unsent_bytes = self.writers[reader_id].write_now(frame)
        if unsent_bytes is None:
            return False
        effects = stream.passed(reader_id, len(frame), n_tokens, self._context.clock(), unsent_bytes)
        if effects:
            self._apply(effects)
        return True

    def token_came(self, now_s: float) -> None:
        """Note the time of a first token of one of its sequences."""
        self._first_token_s = self._first_token_s or now_s

    def finished(self, index: int, event: Finished) -> None:
        """Note that a sequence finished; with the last one the response ends."""
        if event.reason not in GOOD_REASONS:
            effects = self.stream.failed(event.rid, event.reason, refusal_of_end(event) or INTERNAL_ERROR)
        elif self._is_streamed:
            frames = self._framer.finish(index, event)
            events = self._events(frames) if self.is_numbered else [frames]
            effects = self.stream.finished(event.rid, event.reason, events)
        else:
            self._finished[index] = event
            effects = self.stream.finished(event.rid, event.reason)
        self._context.registry.touched.add(self)
        if effects:
            self._apply(effects)

    def rejected(self, refusal: Refusal) -> None:
        """Note that the engine refused the request."""
        self._context.registry.touched.add(self)
        self._apply(self.stream.rejected(refusal))

    def note_released(self, held: Held | None) -> None:
        """Note that the engine released what a sequence held (None: nothing, or it is not known)."""
        self._n_upstream -= 1
        if held is not None:
            self.held.append(held)
        if not self._n_upstream:
            self.released.set(True)

    # From writers.

    def attach(self, cursor: Cursor, writer: ResponseWriter) -> ReaderId:
        """Add a reader that goes on from a cursor of its stream. Its writer must call `leave`."""
        context = self._context
        reader_id, effects = self.stream.attached(cursor, context.clock())
        self.writers[reader_id] = writer
        if reader_id > 1:
            context.metrics.stream_actions["reattach"].value += 1
            context.registry.opened(self)
        if effects:
            self._apply(effects)
        context.registry.watch(self)
        return reader_id

    def written(self, reader_id: ReaderId, unsent_bytes: int = 0) -> None:
        """Note that the reader's write was handed to its transport, which holds `unsent_bytes`."""
        context = self._context
        effects = self.stream.written(reader_id, context.clock(), unsent_bytes)
        if effects:
            self._apply(effects)
            context.registry.wake()

    def watch(self) -> None:
        """Look at the readers at the next tick: something waits for a reader without room."""
        self._context.registry.watch(self)

    def leave(self, reader_id: ReaderId) -> None:
        """Remove a reader, and cancel what runs for it alone. Idempotent."""
        if self.writers.pop(reader_id, None) is None:
            return
        context = self._context
        was_open = self.stream.state is State.OPEN
        if self.stream.state is not State.CLOSED:
            self._apply(self.stream.lost(reader_id, context.clock()))
        if was_open and self.stream.state is State.DETACHED:
            context.metrics.stream_actions["detach"].value += 1
        self.settle()
        if context.registry.touched:
            context.registry.wake()

    # From the server. `registry.wake` follows.

    def close(self, cause: FinishReason, refusal: Refusal | None = None) -> None:
        """End the response early, and tell its readers why. Idempotent."""
        self._apply(self.stream.close(cause, refusal))
        self.settle()

    def tick(self) -> None:
        """Tell the stream the time, and what the transports of its readers hold."""
        unsent = {reader_id: writer.unsent_bytes for reader_id, writer in self.writers.items()}
        self._apply(self.stream.tick(self._context.clock(), unsent))
        self.settle()

    def settle(self) -> None:
        """Log the end of the response if it is over, and tell the registry of the change."""
        is_over = not self.writers and self.stream.state not in LIVE
        if is_over and not self._is_logged:
            self._is_logged = True
            if not self._is_streamed:
                self.drop_gathered()
            self._log_end()
        self._context.registry.changed(self, is_over=is_over)

    def drop_gathered(self) -> None:
        """Drop what was gathered of a whole answer that no reader will get. Idempotent."""
        self._context.registry.budget.free_later(self._framer.drop())

    # Effects.

    def _apply(self, effects: tuple[Effect, ...]) -> None:
        """Carry out what the stream has decided, in order."""
        if not effects:
            return
        context = self._context
        for effect in effects:
            match effect:
                case EndResponse(reason, refusal):
                    self._end(reason, refusal)
                case CancelSequences(rids, reason):
                    context.upstream.cancel(rids, reason)
                case SetFlow(_, flow):
                    context.metrics.stream_actions[_FLOW_ACTIONS[flow]].value += 1
                    context.upstream.send(effect)
                case EndReader(reader_id, reason):
                    context.metrics.stream_actions["drop"].value += 1
                    last_event = self._framer.error(usual_refusal(reason) or INTERNAL_ERROR, self.usage)
                    self.stream.send_to(reader_id, last_event)
                case KeepAlive(reader_id):
                    self.stream.send_to(reader_id, self._comment())
                case Disconnect(reader_id):
                    context.metrics.stream_actions["disconnect"].value += 1
                    self.writers[reader_id].abort()
                case _:
                    assert_never(effect)
        context.registry.touched.add(self)
        if not isinstance(effects[-1], EndResponse):  # the writers watch what they cannot write at the end
            context.registry.watch(self)

    def _end(self, reason: FinishReason, refusal: Refusal | None) -> None:
        context = self._context
        if reason is FinishReason.SLOW_CLIENT:
            context.metrics.stream_actions["drop"].value += 1
        try:
            self._conclude(refusal or (None if reason in GOOD_REASONS else usual_refusal(reason)))
        except Exception:
            # A fault in the framing of one response must not stop the loop that serves all of them.
            context.log.exception("framing failed", request_id=self.spec.request_id)
            self._conclude(INTERNAL_ERROR)

    def _conclude(self, refusal: Refusal | None) -> None:
        """Add the last event of a stream, or the head and the whole body of an answer that is not streamed."""
        now_s = self._context.clock()
        usage = TokenUsage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)
        if refusal is not None:
            self._error_code = refusal.code
            refusal = self._naming_the_field(refusal)
        if self.head is not None:
            frames = self._framer.end(usage) if refusal is None else self._framer.error(refusal, usage)
            *before, last = self._events(frames) if self.is_numbered else (frames,)
            self.stream.conclude(last, before, now_s)
            return
        if refusal is None:
            finished = [self._finished[index] for index in range(self.spec.generation.n_choices)]
            pieces = self._framer.body(finished, usage)
            self.head = json_head(sum(map(len, pieces)), more=(stream_id_header(self.spec.stream_id),))
        else:
            pieces = [self.spec.error_body(refusal)]
            self.head = refusal_head(len(pieces[0]), refusal)
            self.drop_gathered()
        self.stream.conclude(pieces[-1], pieces[:-1], now_s)

    def _naming_the_field(self, refusal: Refusal) -> Refusal:
        """Name the prompt field where the engine refuses the prompt: the engine sees tokens, and no field names."""
        if refusal.status == 400 and refusal.param is None:
            return msgspec.structs.replace(refusal, param=self.spec.generation.prompt_field)
        return refusal

    def _comment(self, text: str = "") -> bytes:
        """A comment, which clients ignore. Where events carry ids it is no block of its own: see `sse.encoder`."""
        return encode_comment(text, is_block=not self.is_numbered)

    def _events(self, frames: bytes) -> list[bytes]:
        """The events one by one, with ids if the response can be resumed; at least one, which may be empty."""
        if not self.is_numbered or not frames:
            return [frames]
        return number_events(frames, self.stream.backlog.end.event_id + 1)

    # Counting and logging.

    def count_tokens(self) -> None:
        """Add to the metrics what was delivered, and what was not, since the last call. No event does, to save time."""
        metrics = self._context.metrics
        n_delivered, n_undelivered = self.stream.backlog.n_delivered, self.stream.backlog.n_undelivered
        if n_delivered != self._counted_delivered:
            metrics.delivered_tokens.value += n_delivered - self._counted_delivered
        if n_undelivered != self._counted_undelivered:
            metrics.wasted_tokens.value += n_undelivered - self._counted_undelivered
        self._counted_delivered, self._counted_undelivered = n_delivered, n_undelivered

    def _log_end(self) -> None:
        stream, log = self.stream, self._context.log
        named = {"request_id": self.spec.request_id, "stream_id": self.spec.stream_id, "reason": self.outcome}
        if self.head is not None and self.head.status >= 400:
            log.info("rejected", **named, status=self.head.status)
            return
        first_s, opened_s = self._first_token_s, stream.opened_s
        log.info(
            "finished",
            **named,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            first_token_s=None if first_s is None else round(first_s - opened_s, 6),
            duration_s=round(self._context.clock() - opened_s, 6),
        )
