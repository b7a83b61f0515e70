"""What the supervisor receives from the processes that it started."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The process serves. `facts` are for the log (port, blocks, load time), never for decisions."""

    facts: dict[str, str | int | float]


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The process works. A loop sends it in its turns; the engine process sends it from another thread than its steps.

    `step_s`: how long the step of the engine that runs now has taken so far; 0 while it computes nothing.
    `longest_gap_s`: the longest time in which the process' loop did not come round since it started.
    `n_dropped`: messages that the process could not decode, since it started.
    """

    step_s: float = 0.0
    longest_gap_s: float = 0.0
    n_dropped: int = 0


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """The API process has answered every request that it had."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The process cannot start: one sentence for people, and the exit code of a server that has not served yet."""

    message: str
    exit_code: int = 1


ToSupervisor: TypeAlias = Ready | Heartbeat | Drained | Failed
