"""Reports of progress: comments, and events of the native protocol."""

from __future__ import annotations

import json

import pytest

from sluiceway.protocols.common.progress import progress_comment, progress_event
from sluiceway.sse.decoder import EventDecoder
from sluiceway.types import Progress

QUEUED = Progress(position=3, computed_tokens=0, total_tokens=2048)
PREFILL = Progress(position=0, computed_tokens=512, total_tokens=2048)


@pytest.mark.parametrize(
    ("progress", "text"), [(QUEUED, "queued position=3"), (PREFILL, "prefill computed=512 of=2048")]
)
def test_comment_has_this_text(progress: Progress, text: str) -> None:
    assert progress_comment(progress) == text


@pytest.mark.parametrize(
    ("progress", "name", "fields"),
    [(QUEUED, "queued", {"position": 3}), (PREFILL, "prefill", {"computed": 512, "total": 2048})],
)
def test_event_has_a_name_and_no_id(progress: Progress, name: str, fields: dict[str, int]) -> None:
    """So the last event id of a reader stays as it was."""
    decoder = EventDecoder()
    assert len(list(decoder.feed(b"id: 7\ndata: x\n\n"))) == 1
    (event,) = decoder.feed(progress_event(progress))
    assert (event.event, json.loads(event.data), event.last_event_id) == (name, fields, "7")
