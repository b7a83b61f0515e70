"""Every reason for which a sequence ends, and what its client is told."""

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
def test_end_is_no_refusal_when_the_sequence_finished_by_itself(reason: FinishReason) -> None:
    """These two have a finish reason in every protocol."""
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
def test_end_is_a_refusal_when_the_sequence_was_ended(reason: FinishReason, status: int, code: str) -> None:
    """A status and a stable word each."""
    refusal = refusal_of_end(finished(reason))
    assert refusal is not None and refusal is usual_refusal(reason)
    assert (refusal.status, refusal.code) == (status, code)


def test_end_names_its_own_refusal_when_the_error_has_one() -> None:
    """The engine knows best; but only an error has one."""
    own = Refusal(status=503, code="engine_restarted", message="again")
    assert refusal_of_end(finished(FinishReason.ERROR, own)) is own
    assert refusal_of_end(finished(FinishReason.ERROR)) is INTERNAL_ERROR
    assert refusal_of_end(finished(FinishReason.STOP, own)) is None


def test_every_reason_is_decided_when_a_new_one_is_added() -> None:
    """Either it is a finish reason of the protocols, or it is a refusal."""
    natural = {reason for reason in FinishReason if refusal_of_end(finished(reason)) is None}
    assert natural == {FinishReason.STOP, FinishReason.LENGTH}
