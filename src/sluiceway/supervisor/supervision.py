"""The supervisor's mind: which processes should run, who must be told what, and when to give up. Pure.

Theory of operation. Facts come in (a child was spawned, reported, exited; a person asked to stop; time passed) and each
leaves effects for the shell to carry out: spawn, tell, kill, announce. `exit_code` is set when nothing is left to do.

    phase      begins when                               ends when
    starting   the server starts                         every child is ready -> serving; one fails -> stopping
    serving    every child was ready once                asked to stop -> draining; too many deaths -> stopping
    draining   asked to stop                             the API process has drained, or time is up -> stopping
    stopping   nothing is worth waiting for              every child has exited -> ended

A child that dies while serving is spawned again, at once the first time and later with growing pauses; its peers are
told at once, since whatever it held is lost. A child that is silent for too long is *hung*: its peers are told, but it
is left alone, because it may come back with everything it holds (a stopped process, a machine that slept). One that
does not come back in `restart_hung_after_s` is killed, and spawned again. The time in which the supervisor itself did
not run does not count as silence.

An engine that computes says so beside its step, so no step is silence. A step that takes `MAX_STEP_FACTOR` times
`restart_hung_after_s` does not end: then too it is killed.

The listening socket belongs to the supervisor. Where the API process does not take connections for
`STAND_IN_AFTER_S`, since it cannot start, or hangs, the supervisor answers them in its stead (`AnswerInstead`).

The exit code is 0 if everything that was open had its end, be it an error that says `draining`. It is 1 if a process
was lost or had to be killed after a person asked to stop, since then answers broke off. Where a process cannot start,
it is what that process said.

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
"""What a child gets to leave in order, and what the API process gets on top of the drain timeout."""
STAND_IN_AFTER_S = 10.0
"""How long connections wait for an API process that starts."""
MAX_STEP_FACTOR = 10.0
_OWN_PAUSE_S = 1.0
"""Between two ticks a tenth of a second passes. After more than this the supervisor was stopped, or starved."""


class Phase(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Spawn:
    role: Role


@dataclass(frozen=True, slots=True)
class Tell:
    role: Role
    message: ToChild


@dataclass(frozen=True, slots=True)
class Kill:
    role: Role


@dataclass(frozen=True, slots=True)
class AnswerInstead:
    """Answer connections in place of the API process, or stop it."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class CloseListener:
    """Take no connection any more."""


@dataclass(frozen=True, slots=True)
class Announce:
    """A lifecycle event for the log: a constant text and its fields."""

    event: str
    fields: dict[str, str | int | float] = field(default_factory=dict)
    is_error: bool = False


Effect: TypeAlias = Spawn | Tell | Kill | AnswerInstead | CloseListener | Announce


@dataclass(slots=True)
class _Child:
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
    """The longest gap and the number of dropped messages that its peers know."""
    respawn_at_s: float | None = None
    deaths_s: deque[float] = field(default_factory=deque)


class Supervision:
    """See the module's docstring. Every method may add effects; `effects()` takes them."""

    def __init__(self, *, drain_timeout_s: float, heartbeat_timeout_s: float, restart_hung_after_s: float) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._restart_hung_after_s = max(restart_hung_after_s, heartbeat_timeout_s)
        # The engine first: it has the most to load.
        self._children = {role: _Child(role) for role in (Role.ENGINE, Role.TOKENIZER, Role.API)}
        self._effects: list[Effect] = []
        self._deadline_s = 0.0
        self._wishes_to_stop = 0
        self._final_code = 0
        self._last_tick_s: float | None = None
        self._unserved_since_s: float | None = None
        """Since when there is no API process that takes connections; None while there is one."""
        self._stands_in = False
        self.phase = Phase.STARTING

    @property
    def exit_code(self) -> int | None:
        """The exit code of the server, once every child has gone."""
        return self._final_code if self.phase is Phase.ENDED else None

    def effects(self) -> list[Effect]:
        """What is to be done since the last call, in order."""
        taken, self._effects = self._effects, []
        return taken

    # Facts.

    def started(self, now_s: float) -> None:
        self._unserved_since_s = now_s
        self._effects += [Spawn(role) for role in self._children]

    def spawned(self, role: Role, pid: int) -> None:
        child = self._children[role]
        child.pid, child.is_alive, child.is_ready, child.is_hung, child.is_killed = pid, True, False, False, False
        child.step_s, child.figures = 0.0, (0.0, 0)

    def reported(self, role: Role, message: ToSupervisor, now_s: float) -> None:
        child = self._children[role]
        child.last_beat_s = now_s
        match message:
            case Ready(facts):
                self._became_ready(child, facts)
            case Heartbeat(step_s, longest_gap_s, n_dropped):
                child.step_s = step_s
                self._beat(child)
                if child.figures != (longest_gap_s, n_dropped):
                    child.figures = (longest_gap_s, n_dropped)
                    self.measured(role.value, longest_gap_s, n_dropped)
            case Drained():
                if self.phase is Phase.DRAINING:
                    self._stop(now_s)
            case Failed(text, exit_code):
                self._announce("process cannot start", is_error=True, role=role.value, why=text)
                if self.phase is Phase.STARTING:
                    self._fail(now_s, exit_code)
            case _:
                assert_never(message)

    def measured(self, process: str, longest_gap_s: float, n_dropped: int) -> None:
        """Figures of a process for the metrics, which the API process renders."""
        if process != Role.API.value and self._children[Role.API].is_ready:
            self._effects.append(Tell(Role.API, ProcessFigures(process, longest_gap_s, n_dropped)))

    def exited(self, role: Role, code: int, now_s: float) -> None:
        child = self._children[role]
        child.is_alive = child.is_ready = child.is_hung = False
        if role is Role.API:
            self._unserved_since_s = now_s
        match self.phase:
            case Phase.STARTING:
                self._announce("process exited", is_error=True, role=role.value, code=code)
                self._fail(now_s, 1)
            case Phase.SERVING:
                self._announce("process exited", is_error=True, role=role.value, code=code)
                self._tell_peers(child, PeerDown(role))
                self._respawn(child, now_s)
            case Phase.DRAINING:
                self._announce("process exited", is_error=True, role=role.value, code=code)
                self._tell_peers(child, PeerDown(role))
                self._final_code = 1  # what was open, or waited for it, broke off
                if role is Role.API:
                    self._stop(now_s)
            case Phase.STOPPING | Phase.ENDED:
                if code != 0 and not child.is_killed:
                    self._announce("process exited", is_error=True, role=role.value, code=code)
                    self._final_code = self._final_code or 1
                self._end_if_all_gone()

    def asked_to_stop(self, now_s: float) -> None:
        """The first time: drain. The second time: end what runs at once. The third: leave."""
        self._wishes_to_stop += 1
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return
        api = self._children[Role.API]
        if self.phase is Phase.STARTING or not api.is_ready or self._wishes_to_stop > 2:
            self._stop(now_s)
            return
        timeout_s = self._drain_timeout_s if self._wishes_to_stop == 1 else 0.0
        self.phase = Phase.DRAINING
        self._deadline_s = now_s + timeout_s + STOP_GRACE_S
        self._announce("draining", timeout_s=timeout_s)
        self._effects.append(Tell(Role.API, Drain(timeout_s)))

    def tick(self, now_s: float) -> None:
        """Time passed; call it several times a second."""
        self._forgive_own_pause(now_s)
        match self.phase:
            case Phase.SERVING:
                for child in self._children.values():
                    self._watch(child, now_s)
                self._watch_door(now_s)
            case Phase.DRAINING:
                if now_s >= self._deadline_s:
                    self._announce("drain timed out", is_error=True)
                    self._fail(now_s, 1)
            case Phase.STOPPING:
                if now_s >= self._deadline_s:
                    self._kill_the_rest()
                    self._deadline_s = now_s + STOP_GRACE_S
            case Phase.STARTING:
                self._watch_door(now_s)
            case Phase.ENDED:
                pass

    # Consequences.

    def _forgive_own_pause(self, now_s: float) -> None:
        """The time in which the supervisor itself did not run does not count as silence of its children."""
        pause_s = 0.0 if self._last_tick_s is None else now_s - self._last_tick_s
        self._last_tick_s = now_s
        if pause_s > _OWN_PAUSE_S:
            for child in self._children.values():
                child.last_beat_s = min(now_s, child.last_beat_s + pause_s)

    def _watch_door(self, now_s: float) -> None:
        since_s, is_hung = self._unserved_since_s, self._children[Role.API].is_hung
        stands_in = is_hung or (since_s is not None and now_s - since_s >= STAND_IN_AFTER_S)
        if stands_in != self._stands_in:
            self._stands_in = stands_in
            self._effects.append(AnswerInstead(stands_in))

    def _became_ready(self, child: _Child, facts: dict[str, str | int | float]) -> None:
        child.is_ready, child.facts = True, facts
        if child.role is Role.API:
            self._unserved_since_s = None
        self._effects.append(Announce("process ready", {"role": child.role.value, "pid": child.pid, **facts}))
        self._tell_peers(child, PeerUp(child.role, child.pid))
        for peer in self._children.values():
            if peer is not child and peer.is_ready:
                self._effects.append(Tell(child.role, PeerUp(peer.role, peer.pid)))
                if child.role is Role.API:
                    self.measured(peer.role.value, *peer.figures)
        if self.phase is Phase.STARTING and all(child.is_ready for child in self._children.values()):
            self.phase = Phase.SERVING
            self._effects.append(Announce("serving", self._children[Role.API].facts))

    def _beat(self, child: _Child) -> None:
        if child.is_hung:
            child.is_hung = False
            self._announce("process responds again", role=child.role.value)
            self._tell_peers(child, PeerUp(child.role, child.pid))

    def _watch(self, child: _Child, now_s: float) -> None:
        if child.respawn_at_s is not None and now_s >= child.respawn_at_s:
            child.respawn_at_s = None
            self._effects.append(Spawn(child.role))
        silent_s = now_s - child.last_beat_s
        is_lost = silent_s > self._restart_hung_after_s
        is_stuck = child.step_s > self._restart_hung_after_s * MAX_STEP_FACTOR
        if child.is_ready and not child.is_killed and (is_lost or is_stuck):
            child.is_killed = True
            self._announce(
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
            self._announce("process hangs", is_error=True, role=child.role.value, silent_s=round(silent_s, 1))
            self._tell_peers(child, PeerDown(child.role, hung=True))

    def _respawn(self, child: _Child, now_s: float) -> None:
        child.deaths_s.append(now_s)
        while child.deaths_s[0] < now_s - RESTART_WINDOW_S:
            child.deaths_s.popleft()
        n_deaths = len(child.deaths_s)
        if n_deaths > MAX_RESTARTS:
            self._announce("process keeps dying", is_error=True, role=child.role.value, deaths=n_deaths)
            self._fail(now_s, 1)
            return
        # At once the first time, then after 0.5, 1, 2, 4 seconds.
        child.respawn_at_s = now_s if n_deaths == 1 else now_s + 0.25 * 2 ** (n_deaths - 1)

    def _fail(self, now_s: float, exit_code: int) -> None:
        self._final_code = exit_code
        self._stop(now_s)

    def _stop(self, now_s: float) -> None:
        self.phase = Phase.STOPPING
        self._deadline_s = now_s + STOP_GRACE_S
        if self._stands_in:
            self._effects.append(AnswerInstead(False))
        self._effects.append(CloseListener())
        for child in self._children.values():
            child.respawn_at_s = None
            if child.is_alive and child.is_ready:
                self._effects.append(Tell(child.role, Stop()))
            elif child.is_alive:
                child.is_killed = True  # it may be loading, and not listen; nothing is lost with it
                self._effects.append(Kill(child.role))
        self._end_if_all_gone()

    def _kill_the_rest(self) -> None:
        """Processes that did not leave within the time they had for it."""
        for child in self._children.values():
            if child.is_alive:
                if not child.is_killed:
                    child.is_killed = True
                    self._announce("process does not leave, and is killed", is_error=True, role=child.role.value)
                    self._final_code = self._final_code or 1
                self._effects.append(Kill(child.role))

    def _end_if_all_gone(self) -> None:
        if self.phase is Phase.STOPPING and not any(child.is_alive for child in self._children.values()):
            self.phase = Phase.ENDED
            self._announce("ended", exit_code=self._final_code)

    def _tell_peers(self, child: _Child, message: ToChild) -> None:
        for peer in self._children.values():
            if peer is not child and peer.is_ready:
                self._effects.append(Tell(peer.role, message))

    def _announce(self, event: str, /, *, is_error: bool = False, **fields: str | int | float) -> None:
        self._effects.append(Announce(event, fields, is_error))
