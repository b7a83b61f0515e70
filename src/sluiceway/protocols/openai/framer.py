"""Writes the answers of chat and completions: chunks of a stream, or one JSON object.

All of a chunk but its text is the same from token to token, so it is made once per response, and one token costs the
encoding of one string. Text of length zero makes no chunk; its token ids, where a client wants them, ride on the next
chunk of that choice. (`token_ids` in a choice is an extension that vLLM introduced.) Log-probabilities come with the
text that their tokens are part of.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import msgspec

from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_api import Delta, Finished
from sluiceway.protocols.common.errors import error_body
from sluiceway.protocols.common.generation import GenerationRequest, TokenUsage
from sluiceway.protocols.common.pieces import JsonPieces, assembled
from sluiceway.protocols.openai.logprobs import PendingLogprobs, chat_logprobs, completion_logprobs
from sluiceway.sse.encoder import encode_json
from sluiceway.types import FinishReason, Piece, TokenLogprobs

_DONE = b"data: [DONE]\n\n"

# As JSON.
_FINISH: Mapping[FinishReason, bytes] = MappingProxyType(
    {FinishReason.STOP: b'"stop"', FinishReason.LENGTH: b'"length"'}
)


class _ChoiceJson:
    """What was gathered of one choice: JSON, part by part. `empty` has the endpoint's fields of log-probabilities."""

    def __init__(self, empty: Mapping[str, Any]) -> None:
        self.text = JsonPieces()
        self.token_ids = JsonPieces()
        self._logprobs = {name: JsonPieces() if value == [] else encode_json(value) for name, value in empty.items()}

    def add_logprobs(self, fields: Mapping[str, Any]) -> int:
        """More of them, as the endpoint tells them. Returns how many bytes they are."""
        n_bytes = 0
        for name, pieces in self._logprobs.items():
            if isinstance(pieces, JsonPieces):
                n_bytes += pieces.add_items(fields[name])
        return n_bytes

    def take(self) -> Iterator[Piece]:
        """All of it, in no order that means anything."""
        for part in (self.text, self.token_ids, *self._logprobs.values()):
            if isinstance(part, JsonPieces):
                yield from part.take()

    def take_logprobs(self) -> Iterator[Piece]:
        """One JSON object."""
        opening = b"{"
        for name, value in self._logprobs.items():
            yield b"%b%b:" % (opening, encode_json(name))
            yield from (b"[", *value.take(), b"]") if isinstance(value, JsonPieces) else (value,)
            opening = b","
        yield b"}"


class _Framer(ABC):
    """What the two endpoints share. A subclass says how one choice looks, in a chunk and in a body."""

    _chunk_object: ClassVar[str]
    _body_object: ClassVar[str]
    _text_opening: ClassVar[bytes]
    """What stands in a choice between its index and its text."""
    _text_closing: ClassVar[bytes]
    _body_opening: ClassVar[bytes]
    """The same in a body, up to the quotation mark; and what follows the one after the text."""
    _body_closing: ClassVar[bytes]
    least_logprob_bytes: ClassVar[int]

    def __init__(self, request: GenerationRequest, response_id: str, created: int) -> None:
        """`created` is in seconds since 1970."""
        n_choices = request.n_choices
        self._n_choices = n_choices
        self._include_usage = request.include_usage
        self._return_token_ids = request.return_token_ids
        self._identity = {
            "id": response_id,
            "object": self._body_object,
            "created": created,
            "model": request.model,
        }
        chunk_identity = encode_json({**self._identity, "object": self._chunk_object})
        self._head = b"data: " + chunk_identity.removesuffix(b"}") + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if request.include_usage else b"]}\n\n"
        self._openings = [b'%b{"index":%d,' % (self._head, index) for index in range(n_choices)]
        self._text_openings = [opening + self._text_opening for opening in self._openings]
        self._plain_closing = self._closing(self._text_closing, b"null", b"null", b"")
        # Ids that no chunk has told yet, per choice; nothing is put there unless a client wants them.
        self._untold: list[list[int]] = [[] for _ in range(n_choices)]
        n_telling = n_choices if request.sampling.logprobs is not None else 0
        self._pending_logprobs = [PendingLogprobs() for _ in range(n_telling)] or None
        self._is_plain = not (request.return_token_ids or n_telling)
        """True when choices have text only, without token ids and logprobs."""
        self._choices: list[_ChoiceJson] = []
        """What was gathered."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """At most one event; none for text of length zero, unless many tokens without any are to be told."""
        if self._is_plain:
            text = delta.text
            return self._text_openings[index] + encode_json(text) + self._plain_closing if text else b""
        if self._return_token_ids:
            self._untold[index].extend(delta.token_ids)
        if self._pending_logprobs is not None:
            self._pending_logprobs[index].add(delta.logprobs)
        return self._text_event(index, delta.text) if delta.text or self._is_overdue(index) else b""

    def end(self, usage: TokenUsage) -> bytes:
        """The usage, if it was asked for, in a chunk without choices; then the end of the stream."""
        return self._usage_event(usage) + _DONE if self._include_usage else _DONE

    def error(self, refusal: Refusal, usage: TokenUsage) -> bytes:
        """Plain data with a top-level `error`, the form on which SDKs raise; an event name would hide it from some.

        The usage comes first, since a client that raises reads no further.
        """
        usage_event = self._usage_event(usage) if self._include_usage else b""
        return b"%bdata: %b\n\n%b" % (usage_event, error_body(refusal), _DONE)

    def gather(self, index: int, delta: Delta) -> int:
        choice = (self._choices or self._begin_choices())[index]
        n_bytes = choice.text.add_text(delta.text)
        if self._return_token_ids:
            n_bytes += choice.token_ids.add_items(delta.token_ids)
        if self._pending_logprobs is not None:
            pending = self._pending_logprobs[index]
            pending.add(delta.logprobs)
            n_bytes += choice.add_logprobs(self._logprobs_fields(pending.take(delta.text)))
        return n_bytes

    def body(self, finished: Sequence[Finished], usage: TokenUsage) -> list[Piece]:
        """The ends come in the order of the choices."""
        pieces = assembled(self._body_parts(finished, usage))
        self._choices = []
        return pieces

    def drop(self) -> list[Piece]:
        dropped = [piece for choice in self._choices for piece in choice.take()]
        self._choices = []
        return dropped

    def _begin_choices(self) -> list[_ChoiceJson]:
        self._choices = [_ChoiceJson(self._logprobs_fields(())) for _ in range(self._n_choices)]
        return self._choices

    @abstractmethod
    def _logprobs_fields(self, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Log-probabilities as the endpoint tells them."""

    def _chunk_logprobs(self, told: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """The same in a chunk."""
        return self._logprobs_fields(told)

    def _body_parts(self, finished: Sequence[Finished], usage: TokenUsage) -> Iterator[Piece]:
        choices = self._choices or self._begin_choices()
        yield encode_json(self._identity).removesuffix(b"}") + b',"choices":['
        for index, (choice, end) in enumerate(zip(choices, finished, strict=True)):
            yield b'%b{"index":%d,%b"' % (b"," if index else b"", index, self._body_opening)
            yield from choice.text.take()
            yield b'"%b,"logprobs":' % self._body_closing
            if self._pending_logprobs is None:
                yield b"null"
            else:
                choice.add_logprobs(self._logprobs_fields(self._pending_logprobs[index].take_last("")))
                yield from choice.take_logprobs()
            yield b',"finish_reason":%b' % (_FINISH.get(end.reason) or _refuse_reason(end.reason))
            if self._return_token_ids:
                yield from (b',"token_ids":[', *choice.token_ids.take(), b"]")
            yield b"}"
        yield b'],"usage":%b}' % encode_json(_usage_fields(usage))

    def _is_overdue(self, index: int) -> bool:
        """Whether tokens without text should not wait any longer for one that has some."""
        return self._pending_logprobs is not None and self._pending_logprobs[index].is_overdue

    def _usage_event(self, usage: TokenUsage) -> bytes:
        return b'%b],"usage":%b}\n\n' % (self._head, encode_json(_usage_fields(usage)))

    def _text_event(self, index: int, text: str) -> bytes:
        """A chunk of an unfinished choice."""
        closing = self._plain_closing
        if not self._is_plain:
            logprobs = self._logprobs(index, text)
            closing = self._closing(self._text_closing, logprobs, b"null", self._take_ids(index))
        return self._text_openings[index] + encode_json(text) + closing

    def _closing(self, content_closing: bytes, logprobs: bytes, finish_reason: bytes, token_ids: bytes) -> bytes:
        fields = (content_closing, logprobs, finish_reason, token_ids, self._tail)
        return b'%b,"logprobs":%b,"finish_reason":%b%b}%b' % fields

    def _finish_closing(self, content_closing: bytes, index: int, finished: Finished, text: str = "") -> bytes:
        reason = _FINISH.get(finished.reason) or _refuse_reason(finished.reason)
        if self._is_plain:
            return b'%b,"logprobs":null,"finish_reason":%b}%b' % (content_closing, reason, self._tail)
        logprobs = self._logprobs(index, text, is_last=True)
        return self._closing(content_closing, logprobs, reason, self._take_ids(index))

    def _logprobs(self, index: int, text: str, *, is_last: bool = False) -> bytes:
        """Those of the tokens that are out with this text."""
        if self._pending_logprobs is None:
            return b"null"
        pending = self._pending_logprobs[index]
        return encode_json(self._chunk_logprobs(pending.take_last(text) if is_last else pending.take(text)))

    def _take_ids(self, index: int) -> bytes:
        if not self._return_token_ids:
            return b""
        ids, self._untold[index] = self._untold[index], []
        return b',"token_ids":' + encode_json(ids)


class ChatFramer(_Framer):
    """chat.completion. The finish reason comes in a chunk of its own, with an empty delta."""

    _chunk_object = "chat.completion.chunk"
    _body_object = "chat.completion"
    _text_opening = b'"delta":{"content":'
    _text_closing = b"}"
    _body_opening = b'"message":{"role":"assistant","content":'
    _body_closing = b',"refusal":null}'
    least_logprob_bytes: ClassVar[int] = 36  # {"token":"","logprob":0,"bytes":[]}

    def start(self, usage: TokenUsage) -> bytes:
        """The first chunk of every choice: the role, and content that is a string from the start."""
        closing = self._closing(b"}", b"null", b"null", b',"token_ids":[]' if self._return_token_ids else b"")
        return b"".join(
            b'%b"delta":{"role":"assistant","content":""%b' % (opening, closing) for opening in self._openings
        )

    def finish(self, index: int, finished: Finished) -> bytes:
        return b'%b"delta":{%b' % (self._openings[index], self._finish_closing(b"}", index, finished))

    def _logprobs_fields(self, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return chat_logprobs(told)

    def _chunk_logprobs(self, told: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """None where there are none, as in the last chunk: clients look at the first of them."""
        return chat_logprobs(told) if told else None


class CompletionFramer(_Framer):
    """text_completion. A choice of up to `max_tokens` tokens has up to `max_tokens` chunks.

    Clients count chunks as tokens, so the finish reason should come with the last text; and no token may wait for what
    follows. Both hold because only the token that reaches `max_tokens` is kept back: its choice ends in that same step,
    so `finish` follows at once and writes both. A choice that ends earlier has a chunk to spare for its finish reason.
    """

    _chunk_object = "text_completion"
    _body_object = "text_completion"
    _text_opening = b'"text":'
    _text_closing = b""
    _body_opening = b'"text":'
    _body_closing = b""
    least_logprob_bytes: ClassVar[int] = 6  # "a":0 and a comma

    def __init__(self, request: GenerationRequest, response_id: str, created: int) -> None:
        super().__init__(request, response_id, created)
        max_tokens = request.sampling.max_tokens
        assert max_tokens is not None  # a completion always has a limit
        self._tokens_left = [max_tokens] * request.n_choices
        self._last_text = [""] * request.n_choices

    def start(self, usage: TokenUsage) -> bytes:
        """Nothing: the first chunk is the first text."""
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        self._tokens_left[index] -= len(delta.token_ids)
        if self._tokens_left[index] > 0:
            return super().delta(index, delta)
        self._last_text[index] += delta.text
        return super().delta(index, msgspec.structs.replace(delta, text=""))

    def finish(self, index: int, finished: Finished) -> bytes:
        text, self._last_text[index] = self._last_text[index], ""
        return self._text_openings[index] + encode_json(text) + self._finish_closing(b"", index, finished, text)

    def error(self, refusal: Refusal, usage: TokenUsage) -> bytes:
        """Text that was kept back goes out before the error: what was generated is not lost."""
        kept = [self._text_event(index, text) for index, text in enumerate(self._last_text) if text]
        return b"".join(kept) + super().error(refusal, usage)

    def _logprobs_fields(self, told: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return completion_logprobs(told)


def _refuse_reason(reason: FinishReason) -> NoReturn:
    raise InvariantError(f"{reason.value} is an error of the stream, not a finish reason")


def _usage_fields(usage: TokenUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
