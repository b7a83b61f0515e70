"""What a process receives from the supervisor that started it."""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec


class Role(str, enum.Enum):
    """The processes of a server; also their addresses on the control socket."""

    API = "api"
    TOKENIZER = "tokenizer"
    ENGINE = "engine"


class PeerDown(msgspec.Struct, frozen=True, tag="peer_down"):
    """That process died or hangs (`hung`, and may come back by itself). What it held is lost if it died."""

    role: Role
    hung: bool = False


class PeerUp(msgspec.Struct, frozen=True, tag="peer_up"):
    """That process serves (again). `pid` is for people, in the account of the server."""

    role: Role
    pid: int = 0


class ProcessFigures(msgspec.Struct, frozen=True, tag="process_figures"):
    """What another process (`process` is its role, or `supervisor`) reported of itself, for the metrics."""

    process: str
    longest_gap_s: float
    n_dropped: int


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Accept nothing new, let what runs finish for at most this long, then end it with `draining`; answer `Drained`."""

    timeout_s: float


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave now, in order."""


ToChild: TypeAlias = PeerDown | PeerUp | ProcessFigures | Drain | Stop
