"""One answer between the hub and its readers: it frames what the hub routes to it, whether it is streamed or whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from sluiceway.api.http.head import Head, json_head, refusal_head, stream_head, stream_id_header
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Delta, Finished, Progressed
from sluiceway.protocols.common.ends import refusal_of_end, usual_refusal
from sluiceway.protocols.common.generation import Framer, Generation, Usage
from sluiceway.protocols.common.progress import progress_comment, progress_event
from sluiceway.refusals import INTERNAL_ERROR
from sluiceway.response.budget import Budget
from sluiceway.response.history import StreamRecord, record_of
from sluiceway.response.lifecycle import LIVE, Effect, ReaderId
from sluiceway.response.stream import Stream
from sluiceway.response.terms import Terms
from sluiceway.sse.encoder import encode_comment, number_events
from sluiceway.types import FinishReason, Held, Rid


class Reader(Protocol):
    """One who writes an answer to a client, as the hub sees it."""

    @property
    def unsent_bytes(self) -> int:
        """What its transport holds."""

    def wake(self) -> None:
        """There is something to take, or nothing to wait for any more."""

    def abort(self) -> None:
        """Break the connection off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be answered, how, and on whose behalf. `stream_id` is the caller's own, or a new one."""

    generation: Generation
    framer: Framer
    error_body: Callable[[Refusal], bytes]
    terms: Terms
    request_id: str
    stream_id: str
    caller: str = ""


class Answer:
    """Synchronous. The hub calls it with events and carries out the effects that it returns; its readers get `head` as
    soon as there is one, then what the stream has for each of them."""

    __slots__ = (
        "_budget",
        "_cached_tokens",
        "_completion_tokens",
        "_error_code",
        "_finished",
        "_framer",
        "_generation",
        "_prompt_tokens",
        "_when_released",
        "delivered_tokens",
        "first_token_s",
        "head",
        "held",
        "is_logged",
        "is_numbered",
        "n_upstream",
        "order",
        "readers",
        "stream",
        "undelivered_tokens",
    )

    def __init__(self, order: Order, rids: Sequence[Rid], budget: Budget, now_s: float) -> None:
        generation = order.generation
        self.order = order
        self._generation = generation
        self._budget = budget
        self._framer = order.framer
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._finished: dict[int, Finished] = {}
        self.stream = Stream(rids, order.terms, budget, now_s)
        self.is_numbered = generation.stream and order.terms.retention is not None
        """Whether its events carry ids, and can be read again."""
        self.readers: dict[ReaderId, Reader] = {}
        """Those who still have to leave."""
        self.first_token_s: float | None = None
        self.head: Head | None = None
        self._error_code: str | None = None
        self.is_logged = False
        self.delivered_tokens = self.undelivered_tokens = 0
        """What the metrics know of."""
        self.n_upstream = len(rids)
        """Sequences of which something is held upstream."""
        self.held: list[Held] = []
        """What they have given back, as far as it is known."""
        self._when_released: list[Callable[[], None]] = []

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)

    @property
    def outcome(self) -> str:
        """For the log: why the answer ended. As long as it has not, a client that leaves is the reason."""
        if self._error_code is not None:
            return self._error_code
        reason = None if self.stream.state in LIVE else self.stream.reason
        return (reason or FinishReason.DISCONNECTED).value

    @property
    def is_over(self) -> bool:
        """Whether it generates nothing any more, and nobody reads it."""
        return not self.readers and self.stream.state not in LIVE

    @property
    def is_refused(self) -> bool:
        """Whether it is an error instead of an answer."""
        return self.head is not None and self.head.status >= 400

    @property
    def is_broken(self) -> bool:
        """Whether it ended, and not by itself: refused, cancelled, left, or hit by a fault."""
        stream = self.stream
        return stream.state not in LIVE and stream.reason not in (FinishReason.STOP, FinishReason.LENGTH)

    @property
    def record(self) -> StreamRecord:
        """How it stands."""
        return record_of(
            self.stream,
            self.order.stream_id,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cached_tokens=self._cached_tokens,
            is_resumable=self.is_numbered,
        )

    def accepted(self, index: int, event: Accepted) -> tuple[Effect, ...]:
        """With the last acceptance a stream begins: from here on an error is an event, not a status."""
        if index % self._generation.n == 0:
            self._prompt_tokens += event.prompt_tokens
            self._cached_tokens += event.cached_tokens
        self.stream.accepted()
        if not self._generation.stream or not self.stream.is_accepted:
            return ()
        self.head = stream_head(self.order.stream_id)
        *before, last = self._events(self._framer.start(self.usage))
        return self.stream.delivered(last, 0, before)

    def progressed(self, index: int, event: Progressed) -> tuple[Effect, ...]:
        """A stream that has begun tells its readers; who comes later is told what holds then."""
        if self.head is not None:
            is_typed = self._generation.wishes.progress == "events"
            progress = event.progress
            self.stream.told(progress_event(progress) if is_typed else self.comment(progress_comment(progress)))
        return ()

    def delta(self, index: int, event: Delta) -> tuple[Effect, ...]:
        n_tokens = len(event.token_ids)
        self._completion_tokens += n_tokens
        if not self._generation.stream:
            return self.stream.gathered(self._framer.gather(index, event), n_tokens)
        frames = self._framer.delta(index, event)
        if not self.is_numbered:
            return self.stream.delivered(frames, n_tokens)
        *before, last = self._events(frames)
        return self.stream.delivered(last, n_tokens, before)

    def finished(self, index: int, event: Finished) -> tuple[Effect, ...]:
        refusal = refusal_of_end(event)
        if refusal is not None:
            return self.stream.failed(event.rid, event.reason, refusal)
        self._finished[index] = event
        frames = self._events(self._framer.finish(index, event)) if self._generation.stream else []
        return self.stream.finished(event.rid, event.reason, frames)

    def end(self, reason: FinishReason, refusal: Refusal | None, now_s: float | None = None) -> None:
        """Carry out `EndResponse`: the last event of a stream, or the head and the whole of what is none.

        `now_s` None: at the time of what the stream was told last.
        """
        refusal = refusal or usual_refusal(reason)
        if refusal is not None:
            self._error_code = refusal.code
            refusal = self._naming_the_field(refusal)
        if self.head is not None:
            frames = self._framer.end(self.usage) if refusal is None else self._framer.error(refusal, self.usage)
            *before, last = self._events(frames)
            self.stream.conclude(last, before, now_s)
            return
        if refusal is None:
            finished = [self._finished[index] for index in range(self._generation.n_choices)]
            pieces = self._framer.body(finished, self.usage)
            self.head = json_head(sum(map(len, pieces)), more=(stream_id_header(self.order.stream_id),))
        else:
            pieces = [self.order.error_body(refusal)]
            self.head = refusal_head(len(pieces[0]), refusal)
            self.drop_gathered()
        self.stream.conclude(pieces[-1], pieces[:-1], now_s)

    def drop_gathered(self) -> None:
        """No reader will get the whole answer: drop what was gathered. Idempotent."""
        self._budget.free_later(self._framer.drop())

    def comment(self, text: str = "") -> bytes:
        """What every reader passes over. Where events carry ids it is no block of its own: see `sse.encoder`."""
        return encode_comment(text, is_block=not self.is_numbered)

    def last_word(self, reason: FinishReason) -> bytes:
        """What a reader is told without which the response goes on."""
        return self._framer.error(usual_refusal(reason) or INTERNAL_ERROR, self.usage)

    def released(self, held: Held | None) -> None:
        """A sequence has given back what it held upstream (None: nothing, or that is not known)."""
        self.n_upstream -= 1
        if held is not None:
            self.held.append(held)
        while self._when_released and not self.n_upstream:
            self._when_released.pop()()

    def when_released(self, tell: Callable[[], None]) -> None:
        """Call `tell` when nothing of it is held upstream; at once if that is so now."""
        if self.n_upstream:
            self._when_released.append(tell)
        else:
            tell()

    def _events(self, frames: bytes) -> list[bytes]:
        """What the stream holds one by one: with their ids, where a reader may come back with one of them."""
        if not self.is_numbered or not frames:
            return [frames]
        return number_events(frames, self.stream.next_event_id)

    def _naming_the_field(self, refusal: Refusal) -> Refusal:
        """The engine sees tokens: what it refuses without naming a field is what the protocol calls the prompt."""
        if refusal.status == 400 and refusal.param is None:
            return msgspec.structs.replace(refusal, param=self._generation.prompt_field)
        return refusal
