"""Decides for the supervisor which processes to start, stop and restart, what to tell them, and when to give up. Pure.

Theory of operation. The supervisor reports facts: a child was spawned, has reported, has exited; a signal asked the
server to stop; time has passed. Each fact adds effects, which the supervisor carries out: spawn, send, kill, log.
`exit_code` is set when nothing is left to do.

    phase      begins when                               ends when
    starting   the server starts                         every child is ready -> serving; one fails -> stopping
    serving    every child was ready once                asked to stop -> draining; too many deaths -> stopping
    draining   asked to stop                             the API process has drained, or time is up -> stopping
    stopping   nothing is worth waiting for              every child has exited -> ended

A child that dies while the server serves is spawned again, the first time without a pause, later after growing pauses.
Its peers get a `PeerDown` immediately, because everything that it held is lost. A child that is silent for too long is
*hung*: its peers get a `PeerDown` too, but it is not killed yet, because it may come back with everything that it holds
(a stopped process, a machine that slept). If it is silent for `restart_hung_after_s`, it is killed and spawned again.
Time in which the supervisor itself did not run does not count as silence.

The engine sends heartbeats from a thread beside its steps, so a long step is not silence. A step that takes
`MAX_STEP_FACTOR` times `restart_hung_after_s` counts as hung, and the engine is killed then too.

The supervisor owns the listening socket. If the API process accepts no connections for `STAND_IN_AFTER_S`, because it
cannot start or hangs, the supervisor answers them itself (`SetStandIn`).

The exit code is 0 if every open response was closed, even with the error `draining`. It is 1 if a process died or had
to be killed after the server was asked to stop, because responses broke off then. If a process cannot start, the exit
code is the one that this process gave.

What this file does not know: processes, signals, sockets, the clock.
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, ProcessFigures, Role, Stop, ToChild
from sluiceway.ipc.messages.to_supervisor import Drained, Failed, Heartbeat, Ready, ToSupervisor

MAX_RESTARTS = 5
RESTART_WINDOW_S = 60.0
STOP_GRACE_S = 5.0
"""The time that a child has to exit, and that the API process has beyond the drain timeout."""
STAND_IN_AFTER_S = 10.0
"""The time that connections wait for an API process that is starting."""
MAX_STEP_FACTOR = 10.0
_OWN_PAUSE_S = 1.0
"""Ticks come every tenth of a second. After a longer pause than this, the supervisor itself did not run."""


class Phase(enum.Enum):
    """What the server as a whole is doing."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the process."""

    role: Role


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the process."""

    role: Role
    message: ToChild


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill the process."""

    role: Role


@dataclass(frozen=True, slots=True)
class SetStandIn:
    """Start or stop answering connections in place of the API process."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class CloseListener:
    """Close the listening socket."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log: a constant text and its fields."""

    event: str
    fields: dict[str, str | int | float] = field(default_factory=dict)
    is_error: bool = False


Effect: TypeAlias = Spawn | Send | Kill | SetStandIn | CloseListener | Log


@dataclass(slots=True)
class _ChildState:
    """The state of one child process."""

    role: Role
    pid: int = 0
    is_alive: bool = False
    is_ready: bool = False
    is_hung: bool = False
    is_killed: bool = False
    facts: dict[str, str | int | float] = field(default_factory=dict)
    last_beat_s: float = 0.0
    step_s: float = 0.0
    figures: tuple[float, int] = (0.0, 0)
    """The longest gap and the number of dropped messages that it has reported."""
    respawn_at_s: float | None = None
    deaths_s: deque[float] = field(default_factory=deque)


class Supervision:
    """Takes facts about the processes and adds the effects to carry out, which `effects` returns."""

    def __init__(self, *, drain_timeout_s: float, heartbeat_timeout_s: float, restart_hung_after_s: float) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._restart_hung_after_s = max(restart_hung_after_s, heartbeat_timeout_s)
        # The engine first: it has the most to load.
        self._children = {role: _ChildState(role) for role in (Role.ENGINE, Role.TOKENIZER, Role.API)}
        self._effects: list[Effect] = []
        self._deadline_s = 0.0
        self._n_stop_requests = 0
        self._final_code = 0
        self._last_tick_s: float | None = None
        self._unserved_since_s: float | None = None
        """When the API process stopped accepting connections, or the server started; None while it accepts them."""
        self._stands_in = False
        self.phase = Phase.STARTING

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server; None until every child has exited."""
        return self._final_code if self.phase is Phase.ENDED else None

    def effects(self) -> list[Effect]:
        """Return the effects that were added since the last call, in their order."""
        taken, self._effects = self._effects, []
        return taken

    # Facts.

    def started(self, now_s: float) -> None:
        """Take note that the server starts."""
        self._unserved_since_s = now_s
        self._effects += [Spawn(role) for role in self._children]

    def spawned(self, role: Role, pid: int) -> None:
        """Take note that a child runs."""
        child = self._children[role]
        child.pid, child.is_alive, child.is_ready, child.is_hung, child.is_killed = pid, True, False, False, False
        child.step_s, child.figures = 0.0, (0.0, 0)

    def reported(self, role: Role, message: ToSupervisor, now_s: float) -> None:
        """Take a message from a child."""
        child = self._children[role]
        child.last_beat_s = now_s
        match message:
            case Ready(facts):
                self._became_ready(child, facts)
            case Heartbeat(step_s, longest_gap_s, n_dropped):
                child.step_s = step_s
                self._responded(child)
                if child.figures != (longest_gap_s, n_dropped):
                    child.figures = (longest_gap_s, n_dropped)
                    self.measured(role.value, longest_gap_s, n_dropped)
            case Drained():
                if self.phase is Phase.DRAINING:
                    self._stop(now_s)
            case Failed(text, exit_code):
                self._log("process cannot start", is_error=True, role=role.value, why=text)
                if self.phase is Phase.STARTING:
                    self._fail(now_s, exit_code)
            case _:
                assert_never(message)

    def measured(self, process: str, longest_gap_s: float, n_dropped: int) -> None:
        """Pass figures of a process on to the API process, which shows them as metrics."""
        if process != Role.API.value and self._children[Role.API].is_ready:
            self._effects.append(Send(Role.API, ProcessFigures(process, longest_gap_s, n_dropped)))

    def exited(self, role: Role, code: int, now_s: float) -> None:
        """Take note that a child has exited, or could not be started."""
        child = self._children[role]
        child.is_alive = child.is_ready = child.is_hung = False
        if role is Role.API:
            self._unserved_since_s = now_s
        match self.phase:
            case Phase.STARTING:
                self._log("process exited", is_error=True, role=role.value, code=code)
                self._fail(now_s, 1)
            case Phase.SERVING:
                self._log("process exited", is_error=True, role=role.value, code=code)
                self._send_to_peers(child, PeerDown(role))
                self._respawn(child, now_s)
            case Phase.DRAINING:
                self._log("process exited", is_error=True, role=role.value, code=code)
                self._send_to_peers(child, PeerDown(role))
                self._final_code = 1  # open responses broke off
                if role is Role.API:
                    self._stop(now_s)
            case Phase.STOPPING | Phase.ENDED:
                if code != 0 and not child.is_killed:
                    self._log("process exited", is_error=True, role=role.value, code=code)
                    self._final_code = self._final_code or 1
                self._end_if_all_exited()

    def asked_to_stop(self, now_s: float) -> None:
        """Take a request to stop. The first one drains, the second one closes what is open, the third one exits."""
        self._n_stop_requests += 1
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return
        api = self._children[Role.API]
        if self.phase is Phase.STARTING or not api.is_ready or self._n_stop_requests > 2:
            self._stop(now_s)
            return
        timeout_s = self._drain_timeout_s if self._n_stop_requests == 1 else 0.0
        self.phase = Phase.DRAINING
        self._deadline_s = now_s + timeout_s + STOP_GRACE_S
        self._log("draining", timeout_s=timeout_s)
        self._effects.append(Send(Role.API, Drain(timeout_s)))

    def tick(self, now_s: float) -> None:
        """Take note of the time. Call it several times a second."""
        self._discount_own_pause(now_s)
        match self.phase:
            case Phase.SERVING:
                for child in self._children.values():
                    self._check(child, now_s)
                self._check_stand_in(now_s)
            case Phase.DRAINING:
                if now_s >= self._deadline_s:
                    self._log("drain timed out", is_error=True)
                    self._fail(now_s, 1)
            case Phase.STOPPING:
                if now_s >= self._deadline_s:
                    self._kill_remaining()
                    self._deadline_s = now_s + STOP_GRACE_S
            case Phase.STARTING:
                self._check_stand_in(now_s)
            case Phase.ENDED:
                pass

    # Consequences.

    def _discount_own_pause(self, now_s: float) -> None:
        """Do not count the time in which the supervisor itself did not run as silence of its children."""
        pause_s = 0.0 if self._last_tick_s is None else now_s - self._last_tick_s
        self._last_tick_s = now_s
        if pause_s > _OWN_PAUSE_S:
            for child in self._children.values():
                child.last_beat_s = min(now_s, child.last_beat_s + pause_s)

    def _check_stand_in(self, now_s: float) -> None:
        since_s, is_hung = self._unserved_since_s, self._children[Role.API].is_hung
        stands_in = is_hung or (since_s is not None and now_s - since_s >= STAND_IN_AFTER_S)
        if stands_in != self._stands_in:
            self._stands_in = stands_in
            self._effects.append(SetStandIn(stands_in))

    def _became_ready(self, child: _ChildState, facts: dict[str, str | int | float]) -> None:
        child.is_ready, child.facts = True, facts
        if child.role is Role.API:
            self._unserved_since_s = None
        self._effects.append(Log("process ready", {"role": child.role.value, "pid": child.pid, **facts}))
        self._send_to_peers(child, PeerUp(child.role, child.pid))
        for peer in self._children.values():
            if peer is not child and peer.is_ready:
                self._effects.append(Send(child.role, PeerUp(peer.role, peer.pid)))
                if child.role is Role.API:
                    self.measured(peer.role.value, *peer.figures)
        if self.phase is Phase.STARTING and all(child.is_ready for child in self._children.values()):
            self.phase = Phase.SERVING
            self._effects.append(Log("serving", self._children[Role.API].facts))

    def _responded(self, child: _ChildState) -> None:
        if child.is_hung:
            child.is_hung = False
            self._log("process responds again", role=child.role.value)
            self._send_to_peers(child, PeerUp(child.role, child.pid))

    def _check(self, child: _ChildState, now_s: float) -> None:
        if child.respawn_at_s is not None and now_s >= child.respawn_at_s:
            child.respawn_at_s = None
            self._effects.append(Spawn(child.role))
        silent_s = now_s - child.last_beat_s
        is_lost = silent_s > self._restart_hung_after_s
        is_stuck = child.step_s > self._restart_hung_after_s * MAX_STEP_FACTOR
        if child.is_ready and not child.is_killed and (is_lost or is_stuck):
            child.is_killed = True
            self._log(
                "process is killed, since it hangs",
                is_error=True,
                role=child.role.value,
                silent_s=round(silent_s, 1),
                step_s=round(child.step_s, 1),
            )
            self._effects.append(Kill(child.role))
            return
        if child.is_ready and not child.is_hung and silent_s > self._heartbeat_timeout_s:
            child.is_hung = True
            self._log("process hangs", is_error=True, role=child.role.value, silent_s=round(silent_s, 1))
            self._send_to_peers(child, PeerDown(child.role, hung=True))

    def _respawn(self, child: _ChildState, now_s: float) -> None:
        child.deaths_s.append(now_s)
        while child.deaths_s[0] < now_s - RESTART_WINDOW_S:
            child.deaths_s.popleft()
        n_deaths = len(child.deaths_s)
        if n_deaths > MAX_RESTARTS:
            self._log("process keeps dying", is_error=True, role=child.role.value, deaths=n_deaths)
            self._fail(now_s, 1)
            return
        # Without a pause the first time, then after 0.5, 1, 2, 4 seconds.
        child.respawn_at_s = now_s if n_deaths == 1 else now_s + 0.25 * 2 ** (n_deaths - 1)

    def _fail(self, now_s: float, exit_code: int) -> None:
        self._final_code = exit_code
        self._stop(now_s)

    def _stop(self, now_s: float) -> None:
        self.phase = Phase.STOPPING
        self._deadline_s = now_s + STOP_GRACE_S
        if self._stands_in:
            self._effects.append(SetStandIn(False))
        self._effects.append(CloseListener())
        for child in self._children.values():
            child.respawn_at_s = None
            if child.is_alive and child.is_ready:
                self._effects.append(Send(child.role, Stop()))
            elif child.is_alive:
                child.is_killed = True  # while it loads it reads no messages, and it holds nothing yet
                self._effects.append(Kill(child.role))
        self._end_if_all_exited()

    def _kill_remaining(self) -> None:
        """Kill the processes that did not exit in their time."""
        for child in self._children.values():
            if child.is_alive:
                if not child.is_killed:
                    child.is_killed = True
                    self._log("process does not leave, and is killed", is_error=True, role=child.role.value)
                    self._final_code = self._final_code or 1
                self._effects.append(Kill(child.role))

    def _end_if_all_exited(self) -> None:
        if self.phase is Phase.STOPPING and not any(child.is_alive for child in self._children.values()):
            self.phase = Phase.ENDED
            self._log("ended", exit_code=self._final_code)

    def _send_to_peers(self, child: _ChildState, message: ToChild) -> None:
        for peer in self._children.values():
            if peer is not child and peer.is_ready:
                self._effects.append(Send(peer.role, message))

    def _log(self, event: str, /, *, is_error: bool = False, **fields: str | int | float) -> None:
        self._effects.append(Log(event, fields, is_error))
