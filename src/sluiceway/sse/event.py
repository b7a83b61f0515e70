"""One server-sent event as a reader sees it, and the error of everything in this package."""

from __future__ import annotations

from dataclasses import dataclass

from sluiceway.errors import SluicewayError


class SSEError(SluicewayError):
    """The stream breaks a bound of the decoder, or a value cannot be written in the format."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """A dispatched event. `last_event_id` is the stream's last id then, set by this event or an earlier one."""

    data: str
    event: str = "message"
    last_event_id: str = ""
