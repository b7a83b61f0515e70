"""How far a request is, in words."""

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
def test_comment_is_read_by_people_when_they_wait(progress: Progress, text: str) -> None:
    """One line."""
    assert progress_comment(progress) == text


@pytest.mark.parametrize(
    ("progress", "name", "fields"),
    [(QUEUED, "queued", {"position": 3}), (PREFILL, "prefill", {"computed": 512, "total": 2048})],
)
def test_event_has_a_name_and_no_id_when_it_is_read(progress: Progress, name: str, fields: dict[str, int]) -> None:
    """A reader keeps the id of the event before it."""
    decoder = EventDecoder()
    assert len(list(decoder.feed(b"id: 7\ndata: x\n\n"))) == 1
    (event,) = decoder.feed(progress_event(progress))
    assert (event.event, json.loads(event.data), event.last_event_id) == (name, fields, "7")
