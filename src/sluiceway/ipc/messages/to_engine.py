"""What the engine process receives."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from sluiceway.types import FinishReason, Flow, Rid, SamplingParams, TokenId


class NewSequence(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence to generate. `sampling.seed` is final: choices of one prompt have different seeds."""

    rid: Rid
    prompt_token_ids: tuple[TokenId, ...]
    sampling: SamplingParams


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Generate the sequences of one request: all are accepted, or none. `is_watched`: report the progress."""

    sequences: tuple[NewSequence, ...]
    is_watched: bool = False


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Finish this sequence with this reason. Any id, at any time; the first reason wins."""

    rid: Rid
    reason: FinishReason


class SetFlow(msgspec.Struct, frozen=True, tag="set_flow"):
    """Run, pause or park these sequences. Unknown ids are ignored.

    The same message goes from the policy of a response through the tokenizer process to the scheduler.
    """

    rids: tuple[Rid, ...]
    flow: Flow


class AuditEngine(msgspec.Struct, frozen=True, tag="audit_engine"):
    """Ask for an `EngineAudit`."""

    query_id: int


ToEngine: TypeAlias = Submit | Abort | SetFlow | AuditEngine
