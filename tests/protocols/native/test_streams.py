"""The JSON that describes streams: records, lists, receipts of cancellations, and refusals."""

from __future__ import annotations

import json

import pytest

from sluiceway.protocols.native.streams import (
    RELEASE_TIMEOUT,
    Receipt,
    list_body,
    receipt_body,
    record_body,
    stream_ended,
    stream_not_found,
)
from sluiceway.response.history import StreamRecord
from sluiceway.types import Held


def record(reason: str | None = "stop", ended_s: float | None = 12.5) -> StreamRecord:
    return StreamRecord(
        stream_id="s-1",
        state="closed",
        reason=reason,
        generated_tokens=9,
        delivered_tokens=6,
        wasted_tokens=2,
        prompt_tokens=5,
        completion_tokens=8,
        cached_tokens=4,
        last_event_id=7,
        is_resumable=True,
        opened_s=10.2504,
        ended_s=ended_s,
    )


TOKENS = {"generated": 9, "delivered": 6, "wasted": 2}
USAGE = {"prompt_tokens": 5, "cached_tokens": 4, "completion_tokens": 8}
FIELDS = {
    "object": "stream",
    "id": "s-1",
    "state": "closed",
    "reason": "stop",
    "created": 1010.25,
    "ended": 1012.5,
    "last_event_id": 7,
    "resumable": True,
    "tokens": TOKENS,
    "usage": USAGE,
}


def test_record_of_a_stream_has_its_state_times_and_usage() -> None:
    """Its times are those of the wall clock. While it runs, it has neither a reason nor an end."""
    assert json.loads(record_body(record(), 1000.0)) == FIELDS
    running = json.loads(record_body(record(None, None), 1000.0))
    assert running == {**FIELDS, "reason": None, "ended": None}


def test_times_are_rounded_to_milliseconds() -> None:
    fields = json.loads(record_body(record(ended_s=12.34567), 0.0004))
    assert (fields["created"], fields["ended"]) == (10.251, 12.346)


def test_list_has_the_records_in_the_form_of_lists_of_openai() -> None:
    assert json.loads(list_body([record(), record()], 1000.0)) == {"object": "list", "data": [FIELDS, FIELDS]}
    assert json.loads(list_body([], 1000.0)) == {"object": "list", "data": []}


def test_receipt_of_a_cancellation_has_the_released_blocks() -> None:
    """Of each choice, and in total."""
    receipt = Receipt("open", record("cancelled"), [Held("running", 3), Held("waiting", 0)], 0.00423456)
    assert json.loads(receipt_body(receipt)) == {
        "object": "stream.cancellation",
        "id": "s-1",
        "found": "open",
        "sequences": [{"state": "running", "blocks": 3}, {"state": "waiting", "blocks": 0}],
        "blocks_freed": 3,
        "release_ms": 4.235,
        "tokens": TOKENS,
        "usage": USAGE,
    }


@pytest.mark.parametrize(("reason", "said"), [("stop", "had ended (stop) before"), (None, "had ended before")])
def test_cancelling_an_ended_stream_is_refused_with_its_finish_reason(reason: str | None, said: str) -> None:
    """The status is 409: only a cancellation that stopped something is a success."""
    refusal = stream_ended(record(reason))
    assert (refusal.status, refusal.code) == (409, "stream_ended") and said in refusal.message


def test_refusal_of_any_unknown_stream_id_is_short_and_printable() -> None:
    """The id comes from the path of the request."""
    refusal = stream_not_found("x\n" * 500)
    assert (refusal.status, refusal.code, refusal.param) == (404, "stream_not_found", "id")
    assert len(refusal.message) < 250 and "\n" not in refusal.message
    assert RELEASE_TIMEOUT.status == 504
