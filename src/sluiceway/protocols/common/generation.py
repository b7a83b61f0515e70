"""A request of any protocol (`GenerationRequest`), what writes its response (`Framer`), and the value `Endpoint`.

An `Endpoint` is everything that the server must know about one path that generates text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.to_api import Delta, Finished
from sluiceway.ipc.messages.to_tokenizer import ChatPrompt, Prompt, TextPrompt
from sluiceway.protocols.common.errors import error_body, model_not_found
from sluiceway.protocols.common.stream_options import StreamOptions
from sluiceway.types import Piece, SamplingParams


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Counts the tokens of one request, all choices together. A prompt counts once, not once per choice."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request, the same in every protocol. Choice j of prompt i has the index `i * n + j`."""

    model: str
    prompts: tuple[Prompt, ...]
    n: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    stream: bool
    stream_options: StreamOptions = StreamOptions()
    include_usage: bool = False
    """Whether a stream of the OpenAI protocols ends with a chunk that has the usage."""
    return_token_ids: bool = False
    """Whether the OpenAI protocols add `token_ids` to each choice."""
    encoded_prompts: bytes | None = None
    """The prompts as they are sent to the tokenizer, if a worker process has encoded them. `prompts` are then empty."""

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_field(self) -> str:
        """The name of the field that held the prompts."""
        return "messages" if any(isinstance(prompt, ChatPrompt) for prompt in self.prompts) else "prompt"

    def without_text(self) -> GenerationRequest:
        """Return a copy with as many prompts of the same kinds, all of them empty: the response needs no more."""
        empty = (ChatPrompt(()) if isinstance(prompt, ChatPrompt) else TextPrompt("") for prompt in self.prompts)
        return replace(self, prompts=tuple(empty), encoded_prompts=None)


class Framer(Protocol):
    """Turns the events of one response into bytes. Each response has its own.

    For a stream, call `start`, then `delta` and `finish` for each choice, then `end`. `error` may come at any
    moment and replaces the rest. Each returns whole server-sent events (several, one, or `b""`), ready for one write.
    For a whole body, call `gather` with each delta, then `body`, or `drop` instead.
    """

    least_logprob_bytes: ClassVar[int]
    """The fewest bytes that the logprobs of one token take in a body."""

    def start(self, usage: TokenUsage) -> bytes:
        """Only the prompt's part of the usage is known yet."""

    def delta(self, index: int, delta: Delta) -> bytes: ...

    def finish(self, index: int, finished: Finished) -> bytes: ...

    def end(self, usage: TokenUsage) -> bytes: ...

    def error(self, refusal: Refusal, usage: TokenUsage) -> bytes:
        """The usage if the request asks for it, the error in the form that the SDKs raise, and the end of the stream.

        So the client can account for the generated tokens even if the stream fails.
        """

    def gather(self, index: int, delta: Delta) -> int:
        """Add the JSON of this delta to the body. Returns its size in bytes.

        Building the whole body at the end would block the event loop, for seconds if there are many tokens.
        """

    def body(self, finished: Sequence[Finished], usage: TokenUsage) -> list[Piece]:
        """The whole body as JSON, in pieces that are not empty (see `pieces`). The framer keeps none of them."""

    def drop(self) -> list[Piece]:
        """Return what was gathered and forget it: there will be no body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Reads requests to one path and writes the responses to them.

    To add an endpoint, define one in a file of its own, and add it to `protocols.endpoints.ENDPOINTS`.
    """

    path: str
    id_prefix: str
    """The ids of responses begin with it, unless the client chooses the id."""
    parser: Callable[[bytes, str], GenerationRequest]
    """Turns a body into a request. Its second argument is the name of the served model. Raises `RequestError`."""
    framer: Callable[[GenerationRequest, str, int], Framer]
    """Makes the framer of one response from the request, the response's id and the time in seconds since 1970."""
    error_body: Callable[[Refusal], bytes] = error_body
    """The body of every error on this path, whichever part of the server refuses the request."""

    def read(self, body: bytes, served_name: str) -> GenerationRequest:
        """Parse a body and check that it names the served model. Raises `RequestError`."""
        request = self.parser(body, served_name)
        if request.model != served_name:
            raise RequestError(model_not_found(request.model, served_name))
        return request
