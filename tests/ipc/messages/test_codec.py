"""A message is decoded as it was encoded, and only by the receiver that it is for."""

from __future__ import annotations

import typing

import msgspec
import pytest

from sluiceway.errors import Refusal
from sluiceway.ipc.messages import to_api, to_child, to_engine, to_supervisor, to_tokenizer
from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.messages.to_api import Accepted, Delta, Events, Finished, Progressed, Rejected, ToApi
from sluiceway.ipc.messages.to_engine import Abort, NewSequence, Submit, ToEngine
from sluiceway.ipc.messages.to_tokenizer import (
    ChatMessage,
    ChatPrompt,
    FromApi,
    FromEngine,
    StepOut,
    TextPrompt,
    Tokenize,
    TokenPrompt,
)
from sluiceway.types import FinishReason, LikelyToken, Logprobs, Progress, SamplingParams, TokenLogprobs
from support.snapshots import engine_stats

STATS = engine_stats(step_id=1)
SAMPLING = SamplingParams(temperature=0.5, seed=2**64 - 1, logit_bias=((3, -1.0),), max_tokens=7)
REFUSAL = Refusal(status=400, code="invalid_value", message="no", param="prompt", retry_after_s=0.5)


@pytest.mark.parametrize(
    ("message", "union"),
    [
        (
            Tokenize(
                rids=(1, 2, 3),
                prompts=(
                    TextPrompt("a\x00b\u2028"),
                    TokenPrompt((0, 2**31)),
                    ChatPrompt(
                        (ChatMessage(role="user", content="😀", name="x"), ChatMessage(role="system", content=""))
                    ),
                ),
                sampling=SAMPLING,
                stop=("\n",),
                is_watched=True,
            ),
            FromApi,
        ),
        (Submit((NewSequence(rid=1, prompt_token_ids=(1, 2), sampling=SAMPLING),), is_watched=True), ToEngine),
        (Abort(5, FinishReason.SLOW_CLIENT), ToEngine),
        (
            StepOut(
                rids=[1, 2],
                token_ids=[3, 4],
                starts=[],
                rejections=[],
                ends=[],
                stats=STATS,
                logprobs={1: Logprobs(-0.5, (4, 5), (-0.5, -9999.0))},
            ),
            FromEngine,
        ),
        (
            Events(
                events=[
                    Accepted(1, 2, 0),
                    Rejected((2, 3), REFUSAL),
                    Progressed(1, Progress(0, 512, 2048)),
                    Delta(1, "", (9,)),
                    Delta(1, "a", (9,), (TokenLogprobs(LikelyToken(9, "a", b"a", -0.5), (), 0, None),)),
                    Finished(rid=1, reason=FinishReason.ERROR, completion_tokens=1, refusal=REFUSAL),
                ]
            ),
            ToApi,
        ),
    ],
    ids=["tokenize", "submit", "abort", "step_out", "events"],
)
def test_a_message_is_decoded_as_it_was_encoded(message: msgspec.Struct, union: object) -> None:
    decoder: Decoder[msgspec.Struct] = Decoder(union)
    assert decoder.decode(encode(message)) == message


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\x80", encode(Delta(1, "a", ())), encode(Abort(1, FinishReason.STOP))[:-1]]
)
def test_bytes_that_are_no_message_for_the_receiver_are_refused(raw: bytes) -> None:
    """Also a part of a message, and a message for another receiver."""
    decoder: Decoder[ToEngine] = Decoder(ToEngine)
    with pytest.raises(msgspec.DecodeError):
        decoder.decode(raw)


@pytest.mark.parametrize(
    "union",
    [to_api.ToApi, to_child.ToChild, to_engine.ToEngine, to_supervisor.ToSupervisor]
    + [to_tokenizer.FromApi, to_tokenizer.FromEngine],
    ids=["api", "child", "engine", "supervisor", "tokenizer-from-api", "tokenizer-from-engine"],
)
def test_every_message_of_a_receiver_is_frozen_and_has_a_tag(union: object) -> None:
    """So no code changes a message, and its tag tells its type."""
    tags = []
    for kind in typing.get_args(union):
        config = kind.__struct_config__
        assert config.frozen, kind
        tags.append(config.tag)
    assert None not in tags and len(set(tags)) == len(tags)
