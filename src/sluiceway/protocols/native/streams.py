"""The bodies that describe streams: the state of one, the list of a caller, and the receipt of a cancellation.

The bodies have times in seconds since 1970. Records have times of a monotonic clock; `epoch_s` is the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sluiceway.errors import Refusal
from sluiceway.protocols.common.body import shorten
from sluiceway.response.history import StreamRecord
from sluiceway.sse.encoder import encode_json
from sluiceway.types import Held


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a cancellation. `found` is the state of the stream before it, `record` the stream after it.

    `held` is what each sequence released, and `release_s` how long that took.
    """

    found: str
    record: StreamRecord
    held: Sequence[Held]
    release_s: float


def record_body(record: StreamRecord, epoch_s: float) -> bytes:
    """The answer for one stream."""
    return encode_json(_record_fields(record, epoch_s))


def list_body(records: Iterable[StreamRecord], epoch_s: float) -> bytes:
    """The answer for all of them."""
    return encode_json({"object": "list", "data": [_record_fields(record, epoch_s) for record in records]})


def receipt_body(receipt: Receipt) -> bytes:
    """The answer to a cancellation that has stopped something."""
    record = receipt.record
    return encode_json(
        {
            "object": "stream.cancellation",
            "id": record.stream_id,
            "found": receipt.found,
            "sequences": [{"state": held.state, "blocks": held.blocks} for held in receipt.held],
            "blocks_freed": sum(held.blocks for held in receipt.held),
            "release_ms": round(receipt.release_s * 1000.0, 3),
            "tokens": _token_fields(record),
            "usage": _usage_fields(record),
        }
    )


def stream_not_found(stream_id: str) -> Refusal:
    """404: the stream never existed, is forgotten, or belongs to another caller. The message does not say which."""
    message = f"There is no stream {shorten(stream_id)} of yours; GET /v1/streams lists them."
    return Refusal(status=404, code="stream_not_found", message=message, param="id")


def stream_ended(record: StreamRecord) -> Refusal:
    """409: the stream had ended before."""
    how = "" if record.reason is None else f" ({record.reason})"
    return Refusal(status=409, code="stream_ended", message=f"The stream had ended{how} before it was cancelled.")


RELEASE_TIMEOUT = Refusal(
    status=504,
    code="release_timeout",
    message="The stream was cancelled, but the engine has not yet said that it gave back what it held.",
)


def _record_fields(record: StreamRecord, epoch_s: float) -> dict[str, Any]:
    return {
        "object": "stream",
        "id": record.stream_id,
        "state": record.state,
        "reason": record.reason,
        "created": round(record.opened_s + epoch_s, 3),
        "ended": None if record.ended_s is None else round(record.ended_s + epoch_s, 3),
        "last_event_id": record.last_event_id,
        "resumable": record.is_resumable,
        "tokens": _token_fields(record),
        "usage": _usage_fields(record),
    }


def _token_fields(record: StreamRecord) -> dict[str, int]:
    """Of those generated, each was delivered, is wasted, or still waits."""
    return {
        "generated": record.generated_tokens,
        "delivered": record.delivered_tokens,
        "wasted": record.wasted_tokens,
    }


def _usage_fields(record: StreamRecord) -> dict[str, int]:
    return {
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
    }
