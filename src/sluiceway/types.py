"""The vocabulary of values that every layer shares: frozen, without behaviour, without I/O."""

from __future__ import annotations

import enum
from typing import Annotated, Literal, TypeAlias

import msgspec

from sluiceway.ranges import MAX_COUNT, MAX_TOKENS, Range, SamplingParameter

Rid: TypeAlias = int
"""Identifies one sequence (one choice of one request) in every process. Given by the API process, never reused."""

TokenId: TypeAlias = int
BlockId: TypeAlias = int
StepId: TypeAlias = int

Piece: TypeAlias = bytes | memoryview
"""Bytes of an answer that do not change. A view keeps the memory that it is of."""


Speculation: TypeAlias = Literal["off", "ngram"]
"""The source of the drafts of a sequence: none, or its own earlier tokens."""


class FinishReason(enum.StrEnum):
    """Why a sequence ended. Every cause of every end is one of these."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    """A caller cancelled it: by `POST /v1/streams/{id}/cancel`, or by leaving a loop over an `LLM`'s tokens."""
    DISCONNECTED = "disconnected"
    """Its client closed the connection, or the process that asked for it died."""
    GRACE_EXPIRED = "grace_expired"
    """Its client left it detached, and no reader came back in time."""
    SLOW_CLIENT = "slow_client"
    DEADLINE = "deadline"
    DRAINING = "draining"
    ERROR = "error"


class Flow(enum.StrEnum):
    """Whether the engine computes a sequence. A paused one keeps its blocks; a parked one gives them back."""

    RUN = "run"
    PAUSE = "pause"
    PARK = "park"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the next token is chosen and when to stop. The protocols check the values, and lower layers trust them.

    The fields are the table of sampling parameters: see `SamplingParameter`. Those without one have a form of their own
    in each protocol.

    `temperature` 0 is greedy. `top_k` 0 is off. `seed` None: one is drawn at submission. `max_tokens` None means up
    to the end of the context. `min_tokens`: end and stop tokens are banned until that many were generated.
    `logit_bias` holds (token id, bias) pairs. `stop_token_ids` end the sequence as the model's own end token does.
    `speculation` changes how soon the tokens come and never which; None: as the engine is set. `logprobs`: each token
    comes with its `Logprobs`, and with this many of the likeliest in its place; None: without.
    """

    max_tokens: Annotated[
        int | None,
        SamplingParameter(MAX_TOKENS, "Most tokens of the answer; without it, up to the end of the model's context."),
    ] = None
    min_tokens: Annotated[int, SamplingParameter(Range(0, MAX_COUNT))] = 0
    temperature: Annotated[
        float, SamplingParameter(Range(0, 2), "How random the choice of tokens is; 0: always the likeliest.")
    ] = 1.0
    top_p: Annotated[
        float,
        SamplingParameter(
            Range(0, 1, is_above=True),
            "Choose among the likeliest tokens that have this share of the probability together.",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        SamplingParameter(
            Range(-1, MAX_COUNT), "Choose among this many of the likeliest tokens; 0, or without it: among all."
        ),
    ] = 0
    min_p: Annotated[
        float,
        SamplingParameter(
            Range(0, 1), "Leave out tokens that are less likely than this share of the likeliest one's probability."
        ),
    ] = 0.0
    presence_penalty: Annotated[
        float,
        SamplingParameter(Range(-2, 2), "Make tokens that are already in the answer less likely; below 0: likelier."),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        SamplingParameter(Range(-2, 2), "As --presence-penalty, but for each time that a token is in the answer."),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        SamplingParameter(
            Range(0, 2, is_above=True),
            "Above 1, make tokens that are in the prompt or the answer less likely; below 1: likelier.",
        ),
    ] = 1.0
    seed: Annotated[
        int | None,
        SamplingParameter(
            Range(-(1 << 63), (1 << 64) - 1), "Makes sampling repeatable; without it, a random one is used."
        ),
    ] = None
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    ignore_eos: Annotated[bool, SamplingParameter()] = False
    stop_token_ids: tuple[TokenId, ...] = ()
    speculation: Speculation | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None


LEAST_LOGPROB = -9999.0
"""Used for minus infinity, which JSON cannot express: the token is impossible."""


class Logprobs(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The logprob of one token, and those of the likeliest tokens at its position.

    They are natural logarithms, from the unchanged logits: before temperature, penalties, biases and bans. The
    likeliest token comes first; of equal ones, the one with the lowest id. No value is below `LEAST_LOGPROB`.
    """

    logprob: float
    top_ids: tuple[TokenId, ...]
    top_logprobs: tuple[float, ...]


class LikelyToken(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A token, and its logprob at one position of an answer.

    `data` is what it adds to a text, as UTF-8; nothing for a special token. `shown` is the token alone, for people:
    bytes that are not UTF-8 are escaped, and a special token is shown by its name.
    """

    token_id: TokenId
    shown: str
    data: bytes
    logprob: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """A generated token with its logprob, the likeliest tokens at its position, and its place in the text.

    Its text begins after `text_start` characters, and is complete when the text has `text_end` characters. One
    character may be made of several tokens: each of them begins where the character begins and is complete with it.
    `text_end` None: the token ended the answer and is not part of its text. A stop string may end the text before
    `text_end`.
    """

    token: LikelyToken
    top: tuple[LikelyToken, ...]
    text_start: int
    text_end: int | None


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of the engine. Its counters count from the start of the engine."""

    step_id: int
    running: int
    waiting: int
    paused: int
    blocks_free: int
    blocks_leased: int
    blocks_fenced: int
    blocks_cached: int
    blocks_total: int
    accepted_total: int
    finished_total: int
    released_total: int
    preempted_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    wasted_tokens_total: int
    """Tokens that were computed for a sequence that had finished or lost its blocks meanwhile."""
    draft_tokens_total: int
    """Tokens that speculation has proposed; those that were not accepted are neither generated nor wasted."""
    accepted_draft_tokens_total: int
    step_s: float = 0.0
    """Duration of the step that this snapshot closes, seconds; 0.0 when no step ran."""
    step_tokens: int = 0
    plan_s_total: float = 0.0
    """Seconds spent on each part of the rounds; `engine.parts` says what belongs to which. Waiting is in none."""
    model_s_total: float = 0.0
    commit_s_total: float = 0.0
    publish_s_total: float = 0.0
    no_tokens_total: int = 0
    """Sequences that ended because the model gave no usable logit for their next token."""


class LiveSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit: a sequence that the engine still holds."""

    rid: Rid
    state: str
    known_tokens: int
    computed_tokens: int
    blocks: int


class Held(msgspec.Struct, frozen=True):
    """What a sequence held at the moment of its end: its state then, and its blocks of the cache."""

    state: str
    blocks: int


class Progress(msgspec.Struct, frozen=True):
    """The progress of a request before its first token: in the queue, or in its prefill.

    `position` is its place in the queue, from 1; 0: its prompt is being computed, and `computed_tokens` of it are done.
    """

    position: int
    computed_tokens: int
    total_tokens: int


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can hold; fixed while it lives."""

    max_model_len: int
    max_sequence_tokens: int
    vocab_size: int
    n_blocks: int
    block_tokens: int
