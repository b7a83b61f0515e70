"""What the supervisor receives from the processes that it started."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process serves. `facts` are for the log (port, blocks, load time), never for decisions."""

    facts: dict[str, str | int | float]


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The loop turned. Sent between steps, so a long prefill does not look like a hang."""


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """The API process has answered every request it had."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The process cannot start; one sentence for a person."""

    message: str


ToSupervisor: TypeAlias = Ready | Heartbeat | Drained | Failed
