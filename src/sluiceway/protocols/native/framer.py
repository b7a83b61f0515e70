"""Writes native answers: an event for each token and then `done` or `error`, or one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_api import Delta, Finished
from sluiceway.protocols.common.errors import error_fields
from sluiceway.protocols.common.generation import GenerationRequest, TokenUsage
from sluiceway.protocols.common.pieces import JsonPieces, assembled
from sluiceway.sse.encoder import encode_json
from sluiceway.types import Piece, TokenLogprobs


class NativeFramer:
    """Writes the events or the body of one sequence. `created` is in seconds since 1970."""

    least_logprob_bytes: ClassVar[int] = 32  # {"id":0,"token":"","logprob":0}

    def __init__(self, request: GenerationRequest, response_id: str, created: int) -> None:
        self._identity = {"id": response_id, "model": request.model, "created": created}
        self._n_tokens = 0
        self._finished: Finished | None = None
        self._text, self._token_ids, self._logprobs = JsonPieces(), JsonPieces(), JsonPieces()

    def start(self, usage: TokenUsage) -> bytes:
        return _event(
            b"start", {**self._identity, "prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cached_tokens}
        )

    def delta(self, index: int, delta: Delta) -> bytes:
        """An event for each token, with or without text, and with its logprob if the request asks for it.

        The text of several tokens is in the event of the last one. Text that comes without a token (it was held back,
        but is not part of a stop string) has the id null.
        """
        *before, last = delta.token_ids or (None,)
        logprobs = [_logprob_json(one) for one in delta.logprobs] or [b""] * (len(before) + 1)
        events = [self._token(token_id, b'""', field) for token_id, field in zip(before, logprobs, strict=False)]
        return b"".join([*events, self._token(last, encode_json(delta.text), logprobs[-1])])

    def finish(self, index: int, finished: Finished) -> bytes:
        """Nothing: `end` writes the finish reason."""
        self._finished = finished
        return b""

    def end(self, usage: TokenUsage) -> bytes:
        if self._finished is None:
            raise InvariantError("the end of an answer came before that of its sequence")
        return _event(b"done", {**_end_fields(self._finished), "usage": usage_fields(usage)})

    def error(self, refusal: Refusal, usage: TokenUsage) -> bytes:
        """The last event, instead of `done`."""
        return _event(b"error", {"error": error_fields(refusal), "usage": usage_fields(usage)})

    def gather(self, index: int, delta: Delta) -> int:
        return (
            self._text.add_text(delta.text)
            + self._token_ids.add_items(delta.token_ids)
            + self._logprobs.add_items([_logprob_fields(one) for one in delta.logprobs])
        )

    def body(self, finished: Sequence[Finished], usage: TokenUsage) -> list[Piece]:
        (end,) = finished
        logprobs = self._logprobs.take()
        end_fields = encode_json({**_end_fields(end), "usage": usage_fields(usage)})
        return assembled(
            [
                encode_json(self._identity).removesuffix(b"}") + b',"text":"',
                *self._text.take(),
                b'","token_ids":[',
                *self._token_ids.take(),
                *([b'],"logprobs":[', *logprobs] if any(logprobs) else []),
                b"]," + end_fields.removeprefix(b"{"),
            ]
        )

    def drop(self) -> list[Piece]:
        return [*self._text.take(), *self._token_ids.take(), *self._logprobs.take()]

    def _token(self, token_id: int | None, text: bytes, logprob: bytes) -> bytes:
        index = self._n_tokens
        if token_id is None:
            index, word = index - 1, b"null"
        else:
            self._n_tokens, word = index + 1, b"%d" % token_id
        return b'event: token\ndata: {"index":%d,"id":%b,"text":%b%b}\n\n' % (index, word, text, logprob)


def usage_fields(usage: TokenUsage) -> dict[str, int]:
    """The usage, in tokens."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _logprob_fields(of: TokenLogprobs) -> dict[str, Any]:
    top = [{"id": token.token_id, "token": token.shown, "logprob": token.logprob} for token in of.top]
    return {"logprob": of.token.logprob, "top": top}


def _logprob_json(of: TokenLogprobs) -> bytes:
    """The same, as further fields of an object that is not closed yet."""
    return b",%b" % encode_json(_logprob_fields(of))[1:-1]


def _end_fields(finished: Finished) -> dict[str, Any]:
    return {"reason": finished.reason.value, "stop": finished.stop_match}


def _event(name: bytes, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, encode_json(fields))
