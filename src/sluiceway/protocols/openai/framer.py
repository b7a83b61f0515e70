"""Writes the answers of chat and completions: chunks of a stream, or one JSON object.

All parts of a chunk but its text are the same for all tokens of a response. They are made once, so a token costs the
encoding of one string. Empty text makes no chunk; if the client wants token ids, they are sent with the next chunk of
that choice. (`token_ids` in a choice is an extension that vLLM introduced.) The logprobs of tokens are sent with their
text.
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
    """Gathers the JSON of one choice of a body. `empty` has the fields that the endpoint uses for logprobs."""

    def __init__(self, empty: Mapping[str, Any]) -> None:
        self.text = JsonPieces()
        self.token_ids = JsonPieces()
        self._logprobs = {name: JsonPieces() if value == [] else encode_json(value) for name, value in empty.items()}

    def add_logprobs(self, fields: Mapping[str, Any]) -> int:
        """Add logprobs in the form of the endpoint. Returns their size in bytes."""
        n_bytes = 0
        for name, pieces in self._logprobs.items():
            if isinstance(pieces, JsonPieces):
                n_bytes += pieces.add_items(fields[name])
        return n_bytes

    def take(self) -> Iterator[Piece]:
        """Return all pieces, in any order."""
        for part in (self.text, self.token_ids, *self._logprobs.values()):
            if isinstance(part, JsonPieces):
                yield from part.take()

    def take_logprobs(self) -> Iterator[Piece]:
        """The logprobs, as one JSON object."""
        opening = b"{"
        for name, value in self._logprobs.items():
            yield b"%b%b:" % (opening, encode_json(name))
            yield from (b"[", *value.take(), b"]") if isinstance(value, JsonPieces) else (value,)
            opening = b","
        yield b"}"


class _Framer(ABC):
    """Writes chunks and bodies. Its subclasses give the form of a choice on their endpoints."""

    _chunk_object: ClassVar[str]
    _body_object: ClassVar[str]
    _text_opening: ClassVar[bytes]
    """What is between the index and the text of a choice in a chunk."""
    _text_closing: ClassVar[bytes]
    _body_opening: ClassVar[bytes]
    """The same in a body, up to the opening quotation mark of the text; `_body_closing` follows the closing one."""
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
        # Ids that are in no chunk yet, per choice, if the client wants them.
        self._unsent_ids: list[list[int]] = [[] for _ in range(n_choices)]
        n_telling = n_choices if request.sampling.logprobs is not None else 0
        self._pending_logprobs = [PendingLogprobs() for _ in range(n_telling)] or None
        self._is_plain = not (request.return_token_ids or n_telling)
        """True when choices have text only, without token ids and logprobs."""
        self._choices: list[_ChoiceJson] = []
        """The choices of a body that is gathered."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """At most one event. Empty text makes none, unless many tokens wait whose logprobs are wanted."""
        if self._is_plain:
            text = delta.text
            return self._text_openings[index] + encode_json(text) + self._plain_closing if text else b""
        if self._return_token_ids:
            self._unsent_ids[index].extend(delta.token_ids)
        if self._pending_logprobs is not None:
            self._pending_logprobs[index].add(delta.logprobs)
        return self._text_event(index, delta.text) if delta.text or self._is_overdue(index) else b""

    def end(self, usage: TokenUsage) -> bytes:
        """The usage in a chunk without choices, if the request asks for it; then the end of the stream."""
        return self._usage_event(usage) + _DONE if self._include_usage else _DONE

    def error(self, refusal: Refusal, usage: TokenUsage) -> bytes:
        """An event without a name and with a top-level `error`: SDKs raise an exception on this form.

        The usage comes first, since a client that raises an exception reads no further.
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
        """`finished` has the ends in the order of the choices."""
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
    def _logprobs_fields(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """The logprobs in the form of the endpoint."""

    def _chunk_logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """The same for a chunk."""
        return self._logprobs_fields(tokens)

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
        """True when so many tokens without text wait that their logprobs are sent without text."""
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
        """The logprobs of the tokens that are complete with this text."""
        if self._pending_logprobs is None:
            return b"null"
        pending = self._pending_logprobs[index]
        return encode_json(self._chunk_logprobs(pending.take_last(text) if is_last else pending.take(text)))

    def _take_ids(self, index: int) -> bytes:
        if not self._return_token_ids:
            return b""
        ids, self._unsent_ids[index] = self._unsent_ids[index], []
        return b',"token_ids":' + encode_json(ids)


class ChatFramer(_Framer):
    """Writes `chat.completion`. The finish reason is in a chunk of its own, with an empty delta."""

    _chunk_object = "chat.completion.chunk"
    _body_object = "chat.completion"
    _text_opening = b'"delta":{"content":'
    _text_closing = b"}"
    _body_opening = b'"message":{"role":"assistant","content":'
    _body_closing = b',"refusal":null}'
    least_logprob_bytes: ClassVar[int] = 36  # {"token":"","logprob":0,"bytes":[]}

    def start(self, usage: TokenUsage) -> bytes:
        """The first chunk of each choice: the role, and empty content, so that content is always a string."""
        closing = self._closing(b"}", b"null", b"null", b',"token_ids":[]' if self._return_token_ids else b"")
        return b"".join(
            b'%b"delta":{"role":"assistant","content":""%b' % (opening, closing) for opening in self._openings
        )

    def finish(self, index: int, finished: Finished) -> bytes:
        return b'%b"delta":{%b' % (self._openings[index], self._finish_closing(b"}", index, finished))

    def _logprobs_fields(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return chat_logprobs(tokens)

    def _chunk_logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """None if there are none, as in the last chunk: clients read the first entry of any list."""
        return chat_logprobs(tokens) if tokens else None


class CompletionFramer(_Framer):
    """Writes `text_completion`. A choice of up to `max_tokens` tokens has up to `max_tokens` chunks.

    Clients count chunks as tokens, so the finish reason should be in the chunk of the last text. But no token may wait
    for the next one. So only the token that reaches `max_tokens` is kept back: its choice finishes in the same step,
    and `finish` writes both. A choice that finishes earlier has a chunk for its finish reason alone.
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
        """Nothing: the first chunk has the first text."""
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
        """Write text that was kept back before the error, so that it is not lost."""
        kept = [self._text_event(index, text) for index, text in enumerate(self._last_text) if text]
        return b"".join(kept) + super().error(refusal, usage)

    def _logprobs_fields(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
        return completion_logprobs(tokens)


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
