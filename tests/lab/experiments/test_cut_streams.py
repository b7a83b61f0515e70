"""Where streams are cut, and how the parts are compared. `test_registry` runs the clients."""

from __future__ import annotations

import pytest

from sluiceway_lab.experiments.cut_streams import CutPlan, ReceivedStream, Resumed, block
from support.target_servers import target_server


def event(number: int, text: str) -> bytes:
    return block(str(number), f'{{"choices":[{{"text":"{text}"}}]}}')


ONE, TWO, THREE = event(1, "a"), event(2, 'b\\"'), event(3, "c")
WHOLE = ONE + TWO + THREE
UNCUT = WHOLE.replace(b"id: ", b": ")
"""Where streams are cut, and how the parts are compared. `test_registry` runs the clients."""


@pytest.mark.parametrize(
    ("events", "replay", "uncut", "held"),
    [
        (WHOLE, WHOLE, UNCUT, (True, True, True)),
        (ONE + THREE, WHOLE, UNCUT, (False, False, False)),
        (ONE + ONE + TWO + THREE, WHOLE, UNCUT, (False, False, False)),
        (WHOLE, ONE + TWO, UNCUT, (False, True, True)),
        (WHOLE, WHOLE, UNCUT.replace(b"c", b"d"), (True, True, False)),
        (TWO + ONE + THREE, WHOLE, UNCUT, (False, False, False)),
    ],
    ids=["whole", "one is missing", "one comes twice", "another replay", "another text", "another order"],
)
def test_streams_are_judged_by_bytes_order_and_text(
    events: bytes, replay: bytes, uncut: bytes, held: tuple[bool, bool, bool]
) -> None:
    one = Resumed(ReceivedStream(events), replay, uncut)
    assert (one.has_same_bytes, one.is_in_order, one.has_same_text) == held


def test_cuts_come_before_the_end_whatever_is_drawn() -> None:
    """All cuts together are shorter than the stream, and each connection brings at least a byte."""
    plan = CutPlan("s", "once", 64, (0.0, 0.999, 0.5, 0.999), (True, False, True, False))
    assert plan.after_events() == [0, 15, 8, 15]
    assert plan.after_bytes(4001) == [1, 1000, 501, 1000]


def test_course_is_drawn_from_its_name() -> None:
    plan = CutPlan.drawn("s-1", "once", 64, 200)
    assert plan == CutPlan.drawn("s-1", "once", 64, 200) != CutPlan.drawn("s-2", "once", 64, 200)
    assert len(plan.cuts) == len(plan.resets) == 200 and {True, False} == set(plan.resets)
    assert all(0 <= share < 1 for share in plan.cuts)


def test_stream_is_asked_for_so_that_it_outlives_its_connection() -> None:
    body = CutPlan.drawn("s-1", "once", 64, 1).body(target_server())
    assert body["sluiceway"] == {"stream_id": "s-1", "resumable": True, "on_disconnect": "detach"}
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ("once", 64, True)
