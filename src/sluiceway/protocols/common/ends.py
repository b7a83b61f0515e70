"""What a client learns of the end of a sequence in any protocol: an ordinary finish, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Finished
from sluiceway.refusals import DRAINING, INTERNAL_ERROR
from sluiceway.types import FinishReason

# 499 is nginx's "client closed request". SDKs do not retry it, as an answer that was cancelled on purpose requires.
_BROKEN: Mapping[FinishReason, Refusal] = MappingProxyType(
    {
        FinishReason.CANCELLED: Refusal(status=499, code="cancelled", message="The request was cancelled."),
        FinishReason.DISCONNECTED: Refusal(
            status=499, code="disconnected", message="The client closed the connection before the answer had ended."
        ),
        FinishReason.GRACE_EXPIRED: Refusal(
            status=499,
            code="grace_expired",
            message="The stream was ended: no reader came back to it within its grace time.",
        ),
        FinishReason.SLOW_CLIENT: Refusal(
            status=408, code="slow_client", message="The stream was ended: its reader did not keep up for too long."
        ),
        FinishReason.DEADLINE: Refusal(
            status=504, code="deadline_exceeded", message="The request was not finished within its deadline."
        ),
        FinishReason.DRAINING: DRAINING,
        FinishReason.ERROR: INTERNAL_ERROR,
    }
)


def usual_refusal(reason: FinishReason) -> Refusal | None:
    """The refusal for a finish reason; None for `stop` and `length`."""
    return _BROKEN.get(reason)


def refusal_of_end(finished: Finished) -> Refusal | None:
    """The refusal for the end of a sequence: its own, or the usual one; None for `stop` and `length`."""
    if finished.reason is FinishReason.ERROR and finished.refusal is not None:
        return finished.refusal
    return usual_refusal(finished.reason)
