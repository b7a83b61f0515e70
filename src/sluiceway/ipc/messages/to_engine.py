"""What the engine process receives."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sluiceway.types import FinishReason, Flow, Rid, SamplingParams, TokenId


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate; `sampling.seed` is final (choices of one prompt have different seeds)."""

    rid: Rid
    prompt_token_ids: tuple[TokenId, ...]
    sampling: SamplingParams


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Sequences of one request: all are admitted, or none is. `is_watched`: it is told how far it is, up to a token."""

    sequences: tuple[Sequence, ...]
    is_watched: bool = False


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End this sequence with this reason. Any id, at any time; the first end wins."""

    rid: Rid
    reason: FinishReason


class SetFlow(msgspec.Struct, frozen=True, tag="set_flow"):
    """Run, pause or park these sequences. Unknown ids are ignored.

    The same message goes from the policy of a response through the tokenizer process to the scheduler.
    """

    rids: tuple[Rid, ...]
    flow: Flow


class AuditEngine(msgspec.Struct, frozen=True, tag="audit_engine"):
    """Answered by an `EngineAudit`."""

    query_id: int


ToEngine: TypeAlias = Submit | Abort | SetFlow | AuditEngine
