"""What a process receives from the supervisor that started it."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class Role(str, enum.Enum):
    """The processes of a server. The values are also their addresses on the control socket."""

    API = "api"
    TOKENIZER = "tokenizer"
    ENGINE = "engine"


class PeerDown(msgspec.Struct, frozen=True, tag="peer_down"):
    """That process died, or it hangs (`hung`) and may recover. What it held is lost if it died."""

    role: Role
    hung: bool = False


class PeerUp(msgspec.Struct, frozen=True, tag="peer_up"):
    """That process serves, perhaps again. `pid` is shown in `/stats`."""

    role: Role
    pid: int = 0


class ProcessFigures(msgspec.Struct, frozen=True, tag="process_figures"):
    """Figures of another process, for the metrics. `process` is its role, or `supervisor`."""

    process: str
    longest_gap_s: float
    n_dropped: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Accept nothing new. Let what runs finish for at most this long, then end it with `draining`; answer `Drained`."""

    timeout_s: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Exit now, in order."""


ToChild: TypeAlias = PeerDown | PeerUp | ProcessFigures | Drain | Stop
