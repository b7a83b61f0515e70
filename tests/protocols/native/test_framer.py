"""Native streams and bodies: a stream has one event for each token, and one for its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_api import Delta, Finished
from sluiceway.protocols.common.generation import TokenUsage
from sluiceway.protocols.common.pieces import PIECE_BYTES
from sluiceway.protocols.native.framer import NativeFramer
from sluiceway.protocols.native.requests import parse_native
from sluiceway.sse.decoder import EventDecoder
from sluiceway.types import FinishReason
from support.token_logprobs import likely, logprobs_of

USAGE = TokenUsage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)
USAGE_FIELDS = {"prompt_tokens": 5, "cached_tokens": 4, "completion_tokens": 3}
STOPPED = Finished(rid=1, reason=FinishReason.STOP, completion_tokens=3, stop_match="END")


def framer() -> NativeFramer:
    return NativeFramer(parse_native(b'{"prompt": "hi"}', "m", is_streamed=True), "s-1", 7)


def delta(text: str, *token_ids: int) -> Delta:
    return Delta(1, text, token_ids)


def events(raw: bytes) -> list[tuple[str, Any]]:
    return [(event.event, json.loads(event.data)) for event in EventDecoder().feed(raw)]


def test_stream_has_these_bytes() -> None:
    one = framer()
    assert one.start(USAGE) == (
        b'event: start\ndata: {"id":"s-1","model":"m","created":7,"prompt_tokens":5,"cached_tokens":4}\n\n'
    )
    assert one.delta(0, delta("h\u2028", 104)) == b'event: token\ndata: {"index":0,"id":104,"text":"h\\u2028"}\n\n'
    assert one.finish(0, STOPPED) == b""
    assert one.end(USAGE) == (
        b'event: done\ndata: {"reason":"stop","stop":"END",'
        b'"usage":{"prompt_tokens":5,"cached_tokens":4,"completion_tokens":3}}\n\n'
    )


def test_each_token_of_a_step_has_its_own_event() -> None:
    """The last one has the text of all of them. A token may have no text, and text may come without a token."""
    one = framer()
    raw = one.delta(0, delta("abc", 1, 2, 3)) + one.delta(0, delta("", 4)) + one.delta(0, delta("tail"))
    assert [tuple(fields.values()) for _, fields in events(raw)] == [
        (0, 1, ""),
        (1, 2, ""),
        (2, 3, "abc"),
        (3, 4, ""),
        (3, None, "tail"),
    ]


LOGPROBS = (
    logprobs_of(b"a", 0, 1, likely(b"a", -0.5), likely(b"\xc3", -1.5, 9)),
    logprobs_of(b"", 1, None, logprob=-2.5),
)
LOGPROBS_FIELDS = [
    {"logprob": -0.5, "top": [{"id": 7, "token": "a", "logprob": -0.5}, {"id": 9, "token": "\\xc3", "logprob": -1.5}]},
    {"logprob": -2.5, "top": []},
]


def test_event_of_a_token_has_its_logprob() -> None:
    """The event of the token that ended the answer too. An event of text without a token has none."""
    one = framer()
    raw = one.delta(0, Delta(1, "a", (7, 256), LOGPROBS)) + one.delta(0, delta("tail"))
    assert [fields for _, fields in events(raw)] == [
        {"index": 0, "id": 7, "text": "", **LOGPROBS_FIELDS[0]},
        {"index": 1, "id": 256, "text": "a", **LOGPROBS_FIELDS[1]},
        {"index": 1, "id": None, "text": "tail"},
    ]


def test_body_has_a_logprob_for_each_token() -> None:
    one = framer()
    for token, token_id in zip(LOGPROBS, (7, 256), strict=True):
        one.gather(0, Delta(1, "", (token_id,), (token,)))
    body = json.loads(b"".join(one.body([STOPPED], USAGE)))
    assert (body["token_ids"], body["logprobs"]) == ([7, 256], LOGPROBS_FIELDS)


def test_error_event_has_a_code_and_the_usage() -> None:
    refusal = Refusal(status=408, code="slow_client", message="Too slow.")
    assert events(framer().error(refusal, USAGE)) == [
        (
            "error",
            {
                "error": {
                    "message": "Too slow.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "slow_client",
                },
                "usage": USAGE_FIELDS,
            },
        )
    ]


def test_body_has_the_text_the_token_ids_and_the_finish_reason() -> None:
    finished = Finished(rid=1, reason=FinishReason.LENGTH, completion_tokens=3)
    one = framer()
    n_gathered = one.gather(0, Delta(1, "ab", (1, 2))) + one.gather(0, Delta(1, "c", (3,)))
    assert n_gathered == len("abc") + len("1,2,3")
    pieces = one.body([finished], USAGE)
    assert json.loads(b"".join(pieces)) == {
        "id": "s-1",
        "model": "m",
        "created": 7,
        "text": "abc",
        "token_ids": [1, 2, 3],
        "reason": "length",
        "stop": None,
        "usage": USAGE_FIELDS,
    }


def test_a_large_body_comes_in_pieces_of_a_bounded_size() -> None:
    """The framer keeps nothing of a body that it returned or dropped."""
    one = framer()
    for _ in range(2):
        n_bytes = one.gather(0, Delta(1, "x" * 100_000, (7,) * 50_000, LOGPROBS * 2_000))
        assert sum(map(len, one.drop())) == n_bytes > 5 * PIECE_BYTES
    one.gather(0, Delta(1, "x" * 100_000, (7,) * 50_000, LOGPROBS * 2_000))
    pieces = one.body([STOPPED], USAGE)
    assert len(pieces) > 4 and all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert len(json.loads(b"".join(pieces))["logprobs"]) == 2_000 * len(LOGPROBS)
    assert json.loads(b"".join(one.body([STOPPED], USAGE)))["text"] == ""


def test_end_raises_before_the_sequence_has_finished() -> None:
    """There is no finish reason yet."""
    with pytest.raises(InvariantError):
        framer().end(USAGE)
