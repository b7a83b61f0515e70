"""The status and the headers of responses."""

from __future__ import annotations

from sluiceway.api.http.head import json_head, refusal_head, stream_head
from sluiceway.errors import Refusal


def test_a_stream_passes_through_proxies_without_buffering() -> None:
    """It has no length, and may not be cached. Its id is in the head."""
    headers = dict(stream_head("s-1").headers)
    assert headers == {
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
        b"x-stream-id": b"s-1",
    }


def test_a_json_body_has_its_length() -> None:
    """The status is 200 unless another one is given."""
    head = json_head(12, more=((b"allow", b"GET"),))
    assert head.status == 200
    assert dict(head.headers) == {b"content-type": b"application/json", b"content-length": b"12", b"allow": b"GET"}


def test_a_refusal_says_when_to_retry_if_that_is_known() -> None:
    """The time is in whole seconds, rounded up."""
    refusal = Refusal(status=503, code="c", message="m", retry_after_s=0.2)
    head = refusal_head(5, refusal)
    assert head.status == 503 and dict(head.headers)[b"retry-after"] == b"1"
    assert b"retry-after" not in dict(refusal_head(5, Refusal(status=400, code="c", message="m")).headers)


def test_a_conflict_tells_clients_not_to_retry() -> None:
    """A retry would be a conflict again."""
    said = [dict(refusal_head(5, Refusal(status=status, code="c", message="m")).headers) for status in (409, 410, 503)]
    assert [headers.get(b"x-should-retry") for headers in said] == [b"false", None, None]
