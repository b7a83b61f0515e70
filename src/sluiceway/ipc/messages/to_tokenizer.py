"""What the tokenizer process receives: requests and cancels from the API process, steps from the engine."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Progressed, Rejected
from sluiceway.ipc.messages.to_engine import SetFlow
from sluiceway.types import (
    EngineFacts,
    EngineStats,
    FinishReason,
    Held,
    LiveSequence,
    Logprobs,
    Rid,
    SamplingParams,
    TokenId,
)


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation, its text parts already joined."""

    role: str
    content: str
    name: str | None = None


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """A text prompt. It is encoded unchanged, with the special tokens that the tokenizer adds to plain prompts."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    """A prompt of token ids, which is used unchanged."""

    token_ids: tuple[TokenId, ...]


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """A chat. The chat template of the model renders it, and opens the turn of the assistant at the end."""

    messages: tuple[ChatMessage, ...]


Prompt: TypeAlias = TextPrompt | TokenPrompt | ChatPrompt


class Tokenize(msgspec.Struct, frozen=True, tag="tokenize", kw_only=True):
    """A new request. It is accepted whole or rejected whole.

    `rids` has one id per choice, prompt-major: with n choices, choice j of prompt i is `rids[i * n + j]`, so
    `len(rids)` is a multiple of `len(prompts)`.
    """

    rids: tuple[Rid, ...]
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    is_watched: bool = False
    """True when the client wants the progress of the request until its first token."""


class TokenizeEncoded(msgspec.Struct, frozen=True, tag="tokenize", kw_only=True):
    """A `Tokenize` whose prompts are encoded already: its receiver sees no difference.

    To decode megabytes of text and to encode them again takes a sender longer than others should wait.
    """

    rids: tuple[Rid, ...]
    prompts: msgspec.Raw
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    is_watched: bool = False


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Finish these sequences now. Any ids, known or not, at any time."""

    rids: tuple[Rid, ...]
    reason: FinishReason


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """Drop what is kept of these sequences, which were lost between processes. No message answers it."""

    rids: tuple[Rid, ...]


class AuditQuery(msgspec.Struct, frozen=True, tag="audit_query"):
    """Ask for an `AuditReport`. The tokenizer passes the query on to the engine."""

    query_id: int


class SequenceEnd(msgspec.Struct, frozen=True):
    """The end of one sequence in the engine. `refusal` is set when the reason is `error`."""

    rid: Rid
    reason: FinishReason
    refusal: Refusal | None = None
    held: Held | None = None


class StepOut(msgspec.Struct, frozen=True, tag="step_out", kw_only=True, omit_defaults=True):
    """The messages of one round of the engine, as one message.

    `rids[i]` got `token_ids[i]`; a rid may occur more than once, in order. Starts come before tokens, ends after them.
    `logprobs` has those of token i under i, for sequences that want logprobs.
    """

    rids: list[Rid]
    token_ids: list[TokenId]
    starts: list[Accepted]
    rejections: list[Rejected]
    ends: list[SequenceEnd]
    stats: EngineStats
    logprobs: dict[int, Logprobs] = {}
    progress: list[Progressed] = []
    """Of watched requests, under the id of one of their sequences, as it was before these tokens."""


class EngineAudit(msgspec.Struct, frozen=True, tag="engine_audit", kw_only=True):
    """The part of the engine in an audit: what it holds, and every broken invariant as a sentence."""

    query_id: int
    stats: EngineStats
    live: tuple[LiveSequence, ...]
    violations: tuple[str, ...]


class EngineUp(msgspec.Struct, frozen=True, tag="engine_up"):
    """The first message of an engine. The tokenizer passes it on to the API process."""

    facts: EngineFacts


FromApi: TypeAlias = Tokenize | Cancel | Forget | SetFlow | AuditQuery
ToTokenizer: TypeAlias = FromApi | TokenizeEncoded
"""What the API process may push. It arrives as `FromApi`."""

FromEngine: TypeAlias = StepOut | EngineAudit | EngineUp
