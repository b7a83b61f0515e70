"""Decides which new sequences the engine refuses, and why, before anything is held.

Lengths: a prompt must leave room for at least one token of the answer. So the prompt and one token must fit into the
context of the model and into the whole cache. `max_tokens` is an upper limit and reserves nothing: an answer that
reaches the end of the room finishes with `length`. None means all the room.

Load: `max_waiting` sequences may wait beyond those that can start immediately. The sequences of one request are
accepted together or not at all.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from sluiceway.config import EngineConfig
from sluiceway.engine.scheduler.sequence import Submission
from sluiceway.errors import Refusal
from sluiceway.refusals import OVERLOADED, prompt_too_long
from sluiceway.types import Rid, SamplingParams, TokenId


def refusal_of(group: Sequence[Submission], config: EngineConfig, *, live: Container[Rid], room: int) -> Refusal | None:
    """The first reason to refuse the sequences of a request; None to accept them.

    `live` has the ids in use; `room` is how many more sequences may be accepted. Faults of the request come before
    overload, since trying again does not help against them.
    """
    seen: set[Rid] = set()
    for submission in group:
        if submission.rid in live or submission.rid in seen:
            return Refusal(status=500, code="duplicate_id", message="The id of this sequence is in use.")
        seen.add(submission.rid)
        for refusal in _faults(submission, config):
            return refusal
    if len(group) > room:
        return OVERLOADED
    return None


def _faults(submission: Submission, config: EngineConfig) -> Iterator[Refusal]:
    """What is wrong with one sequence. Lengths come first, since they bound the cost of the other checks."""
    yield from _length_faults(len(submission.prompt), config)
    yield from _sampling_faults(submission.sampling, config.vocab_size)
    if _outside(submission.prompt, config.vocab_size):
        yield _invalid(f"The prompt has a token id outside the vocabulary of {config.vocab_size} tokens.")


def _length_faults(n_prompt: int, config: EngineConfig) -> Iterator[Refusal]:
    if n_prompt == 0:
        yield _invalid("The prompt is empty: it has no tokens.")
    if n_prompt + 1 > config.max_model_len:
        yield prompt_too_long(str(n_prompt), config.max_model_len)
    cache_tokens = config.n_blocks * config.block_tokens
    if n_prompt + 1 > cache_tokens:
        yield prompt_too_long(str(n_prompt), cache_tokens, why=", since its cache holds no more")


def _sampling_faults(sampling: SamplingParams, vocab_size: int) -> Iterator[Refusal]:
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        yield _invalid(f"`max_tokens` must be at least 1, not {sampling.max_tokens}.", "max_tokens")
    outside = f"has a token id outside the vocabulary of {vocab_size} tokens."
    if _outside([token_id for token_id, _ in sampling.logit_bias], vocab_size):
        yield _invalid(f"`logit_bias` {outside}", "logit_bias")
    if _outside(sampling.stop_token_ids, vocab_size):
        yield _invalid(f"`stop_token_ids` {outside}", "stop_token_ids")


def _outside(token_ids: Sequence[TokenId], vocab_size: int) -> bool:
    return bool(token_ids) and not (min(token_ids) >= 0 and max(token_ids) < vocab_size)


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(status=400, code="invalid_value", message=message, param=param)
