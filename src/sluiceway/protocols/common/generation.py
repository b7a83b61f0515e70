"""The seam between protocols and sessions: what every request is lowered to, and what every protocol can frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Delta, Finished
from sluiceway.ipc.messages.to_tokenizer import ChatPrompt, Prompt, TextPrompt
from sluiceway.protocols.common.wishes import Wishes
from sluiceway.types import Piece, SamplingParams


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, all its choices together; the prompt counts once per prompt, not per choice."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A validated request, whatever protocol it came in. Choice j of prompt i has the index `i * n + j`."""

    model: str
    prompts: tuple[Prompt, ...]
    n: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    stream: bool
    wishes: Wishes = Wishes()
    encoded_prompts: bytes | None = None
    """The prompts as they travel to the tokenizer, where another process has encoded them; `prompts` are then empty."""

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.n

    @property
    def prompt_field(self) -> str:
        """The field of the request that held the prompts."""
        return "messages" if any(isinstance(prompt, ChatPrompt) for prompt in self.prompts) else "prompt"

    def without_text(self) -> Generation:
        """What its answer needs of it: as many prompts of the same kinds, but none that takes room."""
        empty = (ChatPrompt(()) if isinstance(prompt, ChatPrompt) else TextPrompt("") for prompt in self.prompts)
        return replace(self, prompts=tuple(empty), encoded_prompts=None)


class Framer(Protocol):
    """Turns the events of one response into bytes. Made per request; keeps what its protocol wants told.

    Streamed: `start`, then `delta` and `finish` per choice, then `end`; or `error` at any moment instead of what is
    missing. Each returns whole server-sent events (possibly several, possibly `b""`), ready for one write.
    Not streamed: `gather` with each delta, then `body`, or `drop` instead.
    """

    least_logprob_bytes: ClassVar[int]
    """What one log-probability takes in a body, at least."""

    def start(self, usage: Usage) -> bytes:
        """Of the usage only the prompt's part is known."""

    def delta(self, index: int, delta: Delta) -> bytes: ...

    def finish(self, index: int, finished: Finished) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...

    def error(self, refusal: Refusal, usage: Usage) -> bytes:
        """The error in the shape that the protocol's SDKs raise on, and the protocol's end of stream after it.

        Before it the usage, where that was asked for: what was generated is accounted for however it ends.
        """

    def gather(self, index: int, delta: Delta) -> int:
        """Make JSON of what `body` will tell of this delta. Returns how many bytes it takes.

        Building the body of all deltas at the end would hold up the loop, for seconds where tokens are many.
        """

    def body(self, finished: Sequence[Finished], usage: Usage) -> list[Piece]:
        """The whole answer as JSON, in pieces that are not empty (see `pieces`). It hands them over, and keeps none."""

    def drop(self) -> list[Piece]:
        """Drop what was gathered, and return it: there will be no body."""
