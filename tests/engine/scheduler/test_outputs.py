"""What there is to say."""

from __future__ import annotations

import pytest

from sluiceway.engine.scheduler.outputs import End, Outputs, Rejection, Start
from sluiceway.errors import Refusal
from sluiceway.types import FinishReason, Held, Logprobs


def test_there_is_nothing_to_say_when_it_is_new() -> None:
    """An empty one is false."""
    assert not Outputs()


def test_tokens_keep_their_order_when_they_are_added() -> None:
    """Two lists, side by side."""
    outputs = Outputs()
    outputs.add_token(7, 100)
    outputs.add_token(8, 101)
    outputs.add_token(7, 102)
    assert (outputs.rids, outputs.token_ids) == ([7, 8, 7], [100, 101, 102])
    assert outputs


def test_logprobs_are_kept_by_place_when_a_token_has_some() -> None:
    """Most have none."""
    outputs = Outputs()
    outputs.add_token(7, 100)
    outputs.add_token(8, 101, Logprobs(-0.5, (101,), (-0.5,)))
    assert outputs.logprobs == {1: Logprobs(-0.5, (101,), (-0.5,))}


@pytest.mark.parametrize(
    "outputs",
    [
        Outputs(starts=[Start(1, 4, 0)]),
        Outputs(ends=[End(1, FinishReason.STOP, Held("running", 1))]),
        Outputs(rejections=[Rejection((1,), Refusal(status=400, code="invalid_value", message="no"))]),
    ],
    ids=["start", "end", "rejection"],
)
def test_there_is_something_to_say_when_one_thing_happened(outputs: Outputs) -> None:
    """Each kind counts alone."""
    assert outputs
