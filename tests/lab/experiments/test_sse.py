"""The claims of `sse` about a stream and the whole answer."""

from __future__ import annotations

from typing import Any

import httpx_sse
import pytest

from sluiceway_lab.experiments.sse import CLAIMS, by_another_decoder, judged
from sluiceway_lab.load.client import Reply, parse_reply
from support.labs import native_answer, native_events

FULL: dict[str, Any] = {
    "text": "aa",
    "token_ids": [7, 8],
    "reason": "length",
    "usage": {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 2},
}


def reply(*events: bytes, end: bytes = b"", change: tuple[bytes, bytes] = (b"", b"")) -> Reply:
    raw = b"".join(native_answer(*events))
    return parse_reply([(0.0, raw.replace(*change).removesuffix(end))])


def fallen(given: Reply, full: dict[str, Any] = FULL) -> set[str]:
    found = judged(given, full)
    assert set(found) == set(CLAIMS)
    return {claim for claim, holds in found.items() if not holds}


def test_stream_that_is_the_answer_holds_every_claim() -> None:
    assert fallen(reply(*native_events(7, 8))) == set()


@pytest.mark.parametrize(
    ("change", "claim"),
    [
        ((b"text/event-stream", b"text/plain"), "type"),
        ((b"x-stream-id: s-1", b"x-stream-id: s-2"), "identity"),
        ((b"x-request-id: r-1", b"x-request-id:    "), "identity"),
    ],
)
def test_header_that_says_else_is_found(change: tuple[bytes, bytes], claim: str) -> None:
    assert fallen(reply(*native_events(7, 8), change=change)) == {claim}


def test_events_out_of_order_are_found() -> None:
    start, first, second, end = native_events(7, 8)
    assert fallen(reply(first, second, start, end)) == {"order"}
    assert fallen(reply(start, second, end)) == {"order", "same", "last_id"}
    assert fallen(reply(first, second, end)) == {"order", "identity", "last_id"}


def test_other_answer_is_found() -> None:
    given = reply(*native_events(7, 8))
    assert fallen(given, FULL | {"text": "ab"}) == {"same"}
    assert fallen(given, FULL | {"token_ids": [7, 9]}) == {"same"}
    assert fallen(given, FULL | {"usage": {}}) == {"account"}
    assert fallen(given, FULL | {"reason": "stop"}) == {"account"}


def test_stream_that_is_cut_off_after_its_end_is_found() -> None:
    assert fallen(reply(*native_events(7, 8), end=b"0\r\n\r\n")) == {"whole"}


def test_other_decoder_reads_the_same() -> None:
    found = by_another_decoder([reply(b": hello\n\n", *native_events(7)), reply(*native_events(7, 8))])
    assert found.stood and found.sentence == "2 of 2"


def test_other_decoder_that_reads_else_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpx_sse.EventSource, "iter_sse", lambda self: iter(()))
    found = by_another_decoder([reply(*native_events(7))])
    assert found.stood is False and found.sentence == "0 of 1"
