"""What a resumption comes to, from parts that are made up; the run itself is in `test_registry`'s smoke runs."""

from __future__ import annotations

import pytest

from sluiceway.lab.experiments.experiment import Lab
from sluiceway.lab.experiments.resume import Part, Resumed, figures_of, verdicts
from sluiceway.lab.load.calls import Target
from sluiceway.lab.load.record import Run
from sluiceway.lab.session import There


def event(number: int, text: str) -> bytes:
    return b'id: %d\ndata: {"choices":[{"text":"%b"}]}\n\n' % (number, text.encode())


ONE, TWO, THREE = event(1, "a"), event(2, 'b\\"'), event(3, "c")
UNCUT = (ONE + TWO + THREE).replace(b"id: ", b": ")
"""Without ids: nobody asked for them."""


def resumed(*parts: bytes, replay: bytes = ONE + TWO + THREE, uncut: bytes = UNCUT) -> Resumed:
    return Resumed([Part(events, 200 if events else 204, 0.1) for events in parts], replay, uncut)


WHOLE = resumed(ONE, TWO + THREE)


@pytest.mark.parametrize(
    ("one", "stood"),
    [
        (WHOLE, [True, True, True]),
        (resumed(b"", ONE + TWO + THREE, b""), [True, True, True]),
        (resumed(ONE, THREE), [False, False, False]),
        (resumed(ONE, ONE + TWO + THREE), [False, False, False]),
        (resumed(ONE, TWO + THREE, replay=ONE + TWO), [False, True, True]),
        (resumed(ONE, TWO + THREE, uncut=UNCUT.replace(b"c", b"d")), [True, True, False]),
    ],
    ids=["whole", "cut before and after", "one is missing", "one comes twice", "another replay", "another text"],
)
def test_streams_are_judged_by_bytes_order_and_text(one: Resumed, stood: list[bool]) -> None:
    """One stream that is not as it was is enough."""
    lab = Lab(first=There(target=Target("127.0.0.1", 1)), is_smoke=False, seed=0, say=lambda line: None)
    lab.note(Run(subject="s", scenario="cuts", streams=2, repeat=0, figures=figures_of([WHOLE, one])))
    assert [verdict.stood for verdict in verdicts(lab)] == stood


def test_resumptions_after_the_end_are_counted() -> None:
    """The last event had been read, and there was nothing more."""
    figures = figures_of([WHOLE, resumed(ONE + TWO + THREE, b"", b"")])
    assert (figures["cuts"], figures["cuts_after_end"]) == (3, 2)
