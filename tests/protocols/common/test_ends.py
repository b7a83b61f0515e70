"""Every finish reason is either written as such, or sent to the client as a refusal."""

from __future__ import annotations

import pytest

from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Finished
from sluiceway.protocols.common.ends import refusal_of_end, usual_refusal
from sluiceway.refusals import INTERNAL_ERROR
from sluiceway.types import FinishReason


def finished(reason: FinishReason, refusal: Refusal | None = None) -> Finished:
    return Finished(rid=1, reason=reason, completion_tokens=3, refusal=refusal)


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_stop_and_length_are_no_refusals(reason: FinishReason) -> None:
    """Every protocol has these two as finish reasons."""
    assert refusal_of_end(finished(reason)) is usual_refusal(reason) is None


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (FinishReason.CANCELLED, 499, "cancelled"),
        (FinishReason.DISCONNECTED, 499, "disconnected"),
        (FinishReason.GRACE_EXPIRED, 499, "grace_expired"),
        (FinishReason.SLOW_CLIENT, 408, "slow_client"),
        (FinishReason.DEADLINE, 504, "deadline_exceeded"),
        (FinishReason.DRAINING, 503, "draining"),
        (FinishReason.ERROR, 500, "internal_error"),
    ],
)
def test_every_other_reason_is_a_refusal_with_its_status_and_code(reason: FinishReason, status: int, code: str) -> None:
    refusal = refusal_of_end(finished(reason))
    assert refusal is not None and refusal is usual_refusal(reason)
    assert (refusal.status, refusal.code) == (status, code)


def test_an_error_may_have_a_refusal_of_its_own() -> None:
    """The engine sends it. With any other reason, it is not used."""
    own = Refusal(status=503, code="engine_restarted", message="again")
    assert refusal_of_end(finished(FinishReason.ERROR, own)) is own
    assert refusal_of_end(finished(FinishReason.ERROR)) is INTERNAL_ERROR
    assert refusal_of_end(finished(FinishReason.STOP, own)) is None


def test_only_stop_and_length_are_no_refusals() -> None:
    """Fails when a new reason has no refusal."""
    natural = {reason for reason in FinishReason if refusal_of_end(finished(reason)) is None}
    assert natural == {FinishReason.STOP, FinishReason.LENGTH}
