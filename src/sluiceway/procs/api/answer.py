"""One answer between the hub and the wire: it frames what the hub routes to it, whether it is streamed or whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from sluiceway.errors import Refusal
from sluiceway.messages.to_api import Accepted, Delta, Finished
from sluiceway.procs.api.head import STREAM_HEAD, Head, json_head, refusal_head
from sluiceway.protocols.ends import refusal_of_end
from sluiceway.protocols.generation import Choice, Framer, Generation, Usage
from sluiceway.stream.session import Effect, Session
from sluiceway.types import FinishReason, Rid


def _nobody_waits() -> None:
    """What `wake` does until a writer waits."""


class Answer:
    """Synchronous. The hub calls it with events and carries out the effects it returns; a writer reads it.

    The writer sends `head` as soon as there is one, then what the session's outbox holds, until the session is closed.
    Whoever waits sets `wake`, which the hub calls after every batch of events that touched this answer.
    """

    __slots__ = (
        "_cached_tokens",
        "_completion_tokens",
        "_error_body",
        "_finished",
        "_framer",
        "_generation",
        "_prompt_tokens",
        "_text",
        "_token_ids",
        "first_token_s",
        "head",
        "opened_s",
        "outcome",
        "request_id",
        "session",
        "wake",
    )

    def __init__(
        self,
        generation: Generation,
        framer: Framer,
        error_body: Callable[[Refusal], bytes],
        *,
        rids: Iterable[Rid],
        request_id: str,
        now_s: float,
    ) -> None:
        self._generation = generation
        self._framer = framer
        self._error_body = error_body
        self._prompt_tokens = self._cached_tokens = self._completion_tokens = 0
        self._text: list[list[str]] = [[] for _ in range(generation.n_choices)]
        self._token_ids: list[list[int]] = [[] for _ in range(generation.n_choices)]
        self._finished: dict[int, Finished] = {}
        self.session = Session(rids)
        self.request_id = request_id
        self.opened_s = now_s
        self.first_token_s: float | None = None
        self.head: Head | None = None
        self.outcome = FinishReason.CANCELLED.value
        """For the log: why the answer ended. Until it has ended, a client that leaves is the reason."""
        self.wake: Callable[[], None] = _nobody_waits

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)

    def accepted(self, index: int, event: Accepted) -> tuple[Effect, ...]:
        """With the last acceptance a stream begins: from here on an error is an event, not a status."""
        if index % self._generation.n == 0:
            self._prompt_tokens += event.prompt_tokens
            self._cached_tokens += event.cached_tokens
        self.session.accepted()
        if self._generation.stream and self.session.is_accepted:
            self.head = STREAM_HEAD
            self.session.delivered(self._framer.start(), 0)
        return ()

    def delta(self, index: int, event: Delta) -> tuple[Effect, ...]:
        frame = b""
        self._completion_tokens += len(event.token_ids)
        if self._generation.stream:
            frame = self._framer.delta(index, event)
        else:
            self._text[index].append(event.text)
            self._token_ids[index].extend(event.token_ids)
        self.session.delivered(frame, len(event.token_ids))
        return ()

    def finished(self, index: int, event: Finished) -> tuple[Effect, ...]:
        self.outcome = event.reason.value
        refusal = refusal_of_end(event)
        if refusal is not None:
            return self.session.failed(event.rid, event.reason, refusal)
        self._finished[index] = event
        if self._generation.stream:
            self.session.outbox.push(self._framer.finish(index, event))
        return self.session.finished(event.rid)

    def end(self, refusal: Refusal | None) -> int:
        """Carry out `EndResponse`: the last frame. Returns how many tokens nobody will see."""
        outbox = self.session.outbox
        if refusal is not None:
            self.outcome = refusal.code
            refusal = self._naming_the_field(refusal)
        if self.head is not None:
            outbox.push(self._framer.end(self.usage) if refusal is None else self._framer.error(refusal, self.usage))
            return 0
        if refusal is None:
            body = self._framer.body([self._choice(index) for index in range(self._generation.n_choices)], self.usage)
            self.head = json_head(len(body))
            outbox.push(body)
            return 0
        dropped = outbox.take()
        body = self._error_body(refusal)
        self.head = refusal_head(len(body), refusal)
        outbox.push(body)
        return dropped.n_tokens

    def _naming_the_field(self, refusal: Refusal) -> Refusal:
        """The engine sees tokens: what it refuses without naming a field is what the protocol calls the prompt."""
        if refusal.status == 400 and refusal.param is None:
            return msgspec.structs.replace(refusal, param=self._generation.prompt_field)
        return refusal

    def _choice(self, index: int) -> Choice:
        return Choice("".join(self._text[index]), self._token_ids[index], self._finished[index])
