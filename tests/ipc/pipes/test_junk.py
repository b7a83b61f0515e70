"""Messages that cannot be decoded are counted, and logged at most every ten seconds."""

from __future__ import annotations

import pytest
import structlog.testing

from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.messages.to_engine import SetFlow, ToEngine
from sluiceway.ipc.pipes import junk
from sluiceway.ipc.pipes.junk import LOG_EVERY_S, DroppedMessages, decode_or_drop
from sluiceway.types import Flow


def test_a_message_is_decoded() -> None:
    before = junk.dropped_messages.count
    decoder: Decoder[ToEngine] = Decoder(ToEngine)
    assert decode_or_drop(decoder, encode(SetFlow((3,), Flow.PAUSE))) == SetFlow((3,), Flow.PAUSE)
    assert junk.dropped_messages.count == before


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", b"\xff" * 10, b"\x81\xa4type\xa7unknown", b"\x82\xa4type\xa5pause\xa3rid\xa1x"]
)
def test_bytes_that_are_no_message_are_dropped_and_counted(raw: bytes) -> None:
    """No bytes, no msgpack, no message, an unknown message, and a field of another type."""
    before = junk.dropped_messages.count
    decoder: Decoder[ToEngine] = Decoder(ToEngine)
    assert decode_or_drop(decoder, raw) is None
    assert junk.dropped_messages.count == before + 1


def test_much_junk_is_logged_at_most_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message is logged without delay."""
    now_s = 100.0
    monkeypatch.setattr("sluiceway.ipc.pipes.junk.time.monotonic", lambda: now_s)
    dropped = DroppedMessages()
    with structlog.testing.capture_logs() as lines:
        for _ in range(1000):
            dropped.add(b"abc", "no reason")
        now_s += LOG_EVERY_S
        dropped.add(b"abc", "no reason")
    assert [(line["n_bytes"], line["n_dropped"]) for line in lines] == [(3, 1), (3, 1001)]
    assert dropped.count == 1001
