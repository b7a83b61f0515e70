"""What the API process receives from the tokenizer."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sluiceway.errors import Refusal
from sluiceway.lengths import LengthBound
from sluiceway.types import (
    EngineFacts,
    EngineStats,
    FinishReason,
    Held,
    LiveSequence,
    Progress,
    Rid,
    TokenId,
    TokenLogprobs,
)


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The engine accepted a sequence. Exactly one `Finished` follows for it."""

    rid: Rid
    prompt_tokens: int
    cached_tokens: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """A whole request is refused. No other event follows for its sequences."""

    rids: tuple[Rid, ...]
    refusal: Refusal


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False, omit_defaults=True):
    """New text of a sequence and the tokens that it came from.

    `text` may be empty (half a character, or the possible start of a stop string): then the tokens still count.
    `logprobs` has an entry for each token if the request asks for logprobs, else none.
    """

    rid: Rid
    text: str
    token_ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """The end of a sequence. All its text was sent in deltas before.

    `completion_tokens` are those that count for the client (up to and with the one that ended it). `stop_match` is the
    stop string that matched. `held` is what it gave back; one that had not reached the engine was `encoding`. `refusal`
    is set when the reason is `error`.
    """

    rid: Rid
    reason: FinishReason
    completion_tokens: int
    held: Held | None = None
    stop_match: str | None = None
    refusal: Refusal | None = None


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """The progress of the watched request that this sequence belongs to."""

    rid: Rid
    progress: Progress


class AuditReport(msgspec.Struct, frozen=True, tag="audit_report", kw_only=True):
    """What the engine and the tokenizer hold: the answer to an `AuditQuery`."""

    query_id: int
    engine: EngineStats
    live: tuple[LiveSequence, ...]
    violations: tuple[str, ...]
    tokenizer_encoding: int
    """Requests whose prompts are being encoded."""
    tokenizer_decoding: int
    """Sequences whose tokens are turned into text."""
    encoding: tuple[Rid, ...] = ()
    """Sequences whose prompts are being encoded. The engine does not know them yet."""


Event: TypeAlias = Accepted | Rejected | Progressed | Delta | Finished


class Events(msgspec.Struct, frozen=True, tag="events", kw_only=True):
    """All events of one step, in order, and the snapshot of the engine after it (None: not from the engine)."""

    events: list[Event]
    stats: EngineStats | None = None
    wasted_tokens: int = 0
    """Tokens of the step that are in no delta: they came after a stop string, or for an unknown sequence."""


class EngineIsUp(msgspec.Struct, frozen=True, tag="engine_is_up"):
    """An engine has started, for the first time or again. The tokenizer adds its `length_bound`."""

    facts: EngineFacts
    length_bound: LengthBound = LengthBound()


ToApi: TypeAlias = Events | AuditReport | EngineIsUp
