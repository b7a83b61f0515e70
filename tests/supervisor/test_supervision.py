"""The decisions of the supervisor, phase by phase: which processes it spawns, sends messages to, and kills."""

from __future__ import annotations

import pytest

from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, ProcessFigures, Role, Stop
from sluiceway.ipc.messages.to_supervisor import Drained, Failed, Heartbeat, Ready
from sluiceway.supervisor.supervision import (
    MAX_RESTARTS,
    MAX_STEP_FACTOR,
    STAND_IN_AFTER_S,
    STOP_GRACE_S,
    CloseListener,
    Effect,
    Kill,
    Log,
    Phase,
    Send,
    SetStandIn,
    Spawn,
    Supervision,
)

ROLES = (Role.ENGINE, Role.TOKENIZER, Role.API)


def _actions(supervision: Supervision) -> list[Effect]:
    """The effects, without those for the log and the metrics."""
    return [effect for effect in supervision.effects() if not isinstance(effect, Log) and not _is_figures(effect)]


def _is_figures(effect: Effect) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, ProcessFigures)


def _starting() -> Supervision:
    supervision = Supervision(drain_timeout_s=30.0, heartbeat_timeout_s=10.0, restart_hung_after_s=60.0)
    supervision.started(0.0)
    assert _actions(supervision) == [Spawn(role) for role in ROLES]
    for pid, role in enumerate(ROLES, start=100):
        supervision.spawned(role, pid)
    return supervision


def _serving(now_s: float = 0.0) -> Supervision:
    supervision = _starting()
    for role in ROLES:
        supervision.reported(role, Ready({}), now_s)
    assert supervision.phase is Phase.SERVING
    supervision.effects()
    return supervision


def _exit_all(supervision: Supervision, now_s: float) -> None:
    for role in ROLES:
        supervision.exited(role, 0, now_s)


def test_peers_learn_of_each_other_when_they_become_ready() -> None:
    """A process that becomes ready later gets to know the earlier ones, and they get to know it."""
    supervision = _starting()
    supervision.reported(Role.ENGINE, Ready({}), 0.0)
    assert _actions(supervision) == []
    supervision.reported(Role.API, Ready({}), 0.0)
    assert _actions(supervision) == [Send(Role.ENGINE, PeerUp(Role.API, 102)), Send(Role.API, PeerUp(Role.ENGINE, 100))]
    assert supervision.phase is Phase.STARTING


def test_address_is_announced_when_the_server_serves() -> None:
    """Once every process is ready, with the URL that the API process found."""
    supervision = _starting()
    for role in ROLES:
        supervision.reported(role, Ready({"url": "http://127.0.0.1:8000"} if role is Role.API else {"blocks": 7}), 0.0)
    assert Log("serving", {"url": "http://127.0.0.1:8000"}) in supervision.effects()


def test_exit_code_is_one_when_a_process_cannot_start() -> None:
    """Its message is logged. Ready processes are stopped, and loading processes are killed."""
    supervision = _starting()
    supervision.reported(Role.API, Ready({}), 0.0)
    supervision.effects()
    supervision.reported(Role.ENGINE, Failed("no such model"), 1.0)
    effects = supervision.effects()
    assert any(isinstance(effect, Log) and effect.fields.get("why") == "no such model" for effect in effects)
    assert {Kill(Role.ENGINE), Kill(Role.TOKENIZER), Send(Role.API, Stop())} <= set(map(_hashable, effects))
    _exit_all(supervision, 2.0)
    assert supervision.exit_code == 1


def _hashable(effect: Effect) -> Effect:
    return Kill(Role.API) if isinstance(effect, Log) else effect


def test_exit_code_is_one_when_a_process_dies_while_starting() -> None:
    """It is not restarted before the server has served: it would die again."""
    supervision = _starting()
    supervision.exited(Role.TOKENIZER, -9, 0.0)
    assert set(_actions(supervision)) == {CloseListener(), Kill(Role.ENGINE), Kill(Role.API)}
    supervision.exited(Role.ENGINE, -9, 0.0)
    assert supervision.exit_code is None
    supervision.exited(Role.API, -9, 0.0)
    assert supervision.exit_code == 1


def test_dead_engine_is_announced_and_spawned_again_when_serving() -> None:
    """Peers learn of it immediately, and the first restart does not wait."""
    supervision = _serving()
    supervision.exited(Role.ENGINE, -9, 5.0)
    assert _actions(supervision) == [Send(Role.TOKENIZER, PeerDown(Role.ENGINE)), Send(Role.API, PeerDown(Role.ENGINE))]
    supervision.tick(5.0)
    assert _actions(supervision) == [Spawn(Role.ENGINE)]
    supervision.tick(5.1)
    assert _actions(supervision) == []


def test_restarts_wait_longer_when_deaths_repeat() -> None:
    """The second restart waits half a second, the third a second."""
    supervision = _serving()
    for now_s, pause_s in ((0.0, 0.0), (1.0, 0.5), (3.0, 1.0)):
        supervision.exited(Role.ENGINE, 1, now_s)
        supervision.effects()
        if pause_s:
            supervision.tick(now_s + pause_s - 0.01)
            assert _actions(supervision) == []
        supervision.tick(now_s + pause_s)
        assert _actions(supervision) == [Spawn(Role.ENGINE)]
        supervision.spawned(Role.ENGINE, 200)


def test_old_deaths_are_forgotten_when_a_minute_has_passed() -> None:
    """A process that dies once an hour is always restarted."""
    supervision = _serving()
    for hour in range(MAX_RESTARTS * 3):
        now_s = hour * 3600.0
        supervision.exited(Role.ENGINE, 1, now_s)
        supervision.tick(now_s)
        assert Spawn(Role.ENGINE) in _actions(supervision)
        supervision.spawned(Role.ENGINE, 200)


def test_server_gives_up_when_a_process_keeps_dying() -> None:
    """The exit code is 1 after too many deaths in a minute."""
    supervision = _serving()
    for i in range(MAX_RESTARTS):
        supervision.exited(Role.ENGINE, 1, float(i))
        supervision.spawned(Role.ENGINE, 200 + i)
    assert supervision.phase is Phase.SERVING
    supervision.exited(Role.ENGINE, 1, float(MAX_RESTARTS))
    _exit_all(supervision, 20.0)
    assert supervision.exit_code == 1


def test_peers_learn_when_a_process_hangs_and_when_it_responds_again() -> None:
    """It is not killed, because it may recover with everything that it holds."""
    supervision = _serving(now_s=0.0)
    for role in (Role.TOKENIZER, Role.API):
        supervision.reported(role, Heartbeat(), 9.9)
    supervision.tick(10.1)
    down = PeerDown(Role.ENGINE, hung=True)
    assert _actions(supervision) == [Send(Role.TOKENIZER, down), Send(Role.API, down)]
    supervision.tick(10.2)
    assert _actions(supervision) == []
    supervision.reported(Role.ENGINE, Heartbeat(), 11.0)
    assert _actions(supervision) == [
        Send(Role.TOKENIZER, PeerUp(Role.ENGINE, 100)),
        Send(Role.API, PeerUp(Role.ENGINE, 100)),
    ]


def test_server_drains_then_stops_when_asked_once() -> None:
    """The exit code is 0."""
    supervision = _serving()
    supervision.asked_to_stop(1.0)
    assert _actions(supervision) == [Send(Role.API, Drain(30.0))]
    supervision.tick(2.0)
    supervision.reported(Role.API, Drained(), 3.0)
    assert _actions(supervision) == [CloseListener(), *(Send(role, Stop()) for role in ROLES)]
    supervision.reported(Role.API, Drained(), 3.0)
    assert _actions(supervision) == []
    assert not _has_ended(supervision)
    _exit_all(supervision, 4.0)
    assert _has_ended(supervision)
    assert supervision.exit_code == 0
    assert supervision.effects()[-1] == Log("ended", {"exit_code": 0}), "the last line of the log"
    supervision.tick(5.0)
    supervision.asked_to_stop(5.0)
    assert _actions(supervision) == []


def _has_ended(supervision: Supervision) -> bool:
    return supervision.exit_code is not None


def test_drain_is_cut_short_when_asked_twice_and_skipped_when_asked_three_times() -> None:
    """The second request closes what is open, the third one exits."""
    supervision = _serving()
    supervision.asked_to_stop(1.0)
    supervision.effects()
    supervision.asked_to_stop(2.0)
    assert _actions(supervision) == [Send(Role.API, Drain(0.0))]
    supervision.asked_to_stop(3.0)
    assert _actions(supervision) == [CloseListener(), *(Send(role, Stop()) for role in ROLES)]


def test_server_stops_immediately_when_asked_before_it_serves() -> None:
    """There is nothing to drain. A start that was cancelled is no failure."""
    supervision = _starting()
    supervision.asked_to_stop(1.0)
    assert _actions(supervision) == [CloseListener(), *(Kill(role) for role in ROLES)]
    _exit_all(supervision, 1.0)
    assert supervision.exit_code == 0


def test_stop_follows_when_the_drain_never_ends() -> None:
    """After the drain timeout and a grace period the processes are stopped, after another they are killed."""
    supervision = _serving()
    supervision.asked_to_stop(0.0)
    supervision.effects()
    supervision.tick(30.0 + STOP_GRACE_S)
    assert _actions(supervision) == [CloseListener(), *(Send(role, Stop()) for role in ROLES)]
    supervision.exited(Role.API, 0, 36.0)
    supervision.tick(30.0 + 2 * STOP_GRACE_S)
    assert _actions(supervision) == [Kill(Role.ENGINE), Kill(Role.TOKENIZER)]
    supervision.tick(30.0 + 2 * STOP_GRACE_S + 1)
    assert _actions(supervision) == []


@pytest.mark.parametrize("role", [Role.ENGINE, Role.TOKENIZER])
def test_api_process_learns_of_a_peer_that_dies_while_draining(role: Role) -> None:
    """The API process closes its open responses itself. Nothing is spawned any more."""
    supervision = _serving()
    supervision.asked_to_stop(0.0)
    supervision.effects()
    supervision.exited(role, -9, 1.0)
    actions = _actions(supervision)
    assert Send(Role.API, PeerDown(role)) in actions
    supervision.tick(2.0)
    assert _actions(supervision) == []


def test_exit_code_is_one_when_the_api_dies_while_draining() -> None:
    """Open responses are lost, so the drain failed."""
    supervision = _serving()
    supervision.asked_to_stop(0.0)
    supervision.exited(Role.API, -9, 1.0)
    _exit_all(supervision, 2.0)
    assert supervision.exit_code == 1


def test_failed_restart_is_announced_when_serving() -> None:
    """It counts as a death only when the process exits."""
    supervision = _serving()
    supervision.exited(Role.ENGINE, -9, 0.0)
    supervision.effects()
    supervision.reported(Role.ENGINE, Failed("out of memory"), 1.0)
    assert supervision.phase is Phase.SERVING
    assert _actions(supervision) == []


def test_drained_is_ignored_without_a_request_to_stop() -> None:
    supervision = _serving()
    supervision.reported(Role.API, Drained(), 1.0)
    assert supervision.phase is Phase.SERVING


def test_server_stops_when_asked_while_the_api_is_down() -> None:
    """Without the API process there is nothing to drain."""
    supervision = _serving()
    supervision.exited(Role.API, -9, 0.0)
    supervision.effects()
    supervision.asked_to_stop(0.1)
    assert _actions(supervision) == [CloseListener(), Send(Role.ENGINE, Stop()), Send(Role.TOKENIZER, Stop())]


@pytest.mark.parametrize("code", [1, 2, 3])
def test_exit_code_is_the_one_of_the_process_that_cannot_start(code: int) -> None:
    """The command line uses the same codes for a wrong setting and an unreadable model."""
    supervision = _starting()
    supervision.reported(Role.ENGINE, Failed("no", code), 1.0)
    supervision.exited(Role.ENGINE, 1, 1.1)
    _exit_all(supervision, 2.0)
    assert supervision.exit_code == code


def test_exit_code_is_one_when_a_drain_is_not_answered() -> None:
    """The API process was stopped, or hangs. Its streams break off."""
    supervision = _serving()
    supervision.asked_to_stop(0.0)
    supervision.tick(30.0 + STOP_GRACE_S)
    supervision.effects()
    supervision.tick(30.0 + 2 * STOP_GRACE_S)
    assert Kill(Role.API) in _actions(supervision)
    for role in ROLES:
        supervision.exited(role, -9, 41.0)
    assert supervision.exit_code == 1


def test_exit_code_is_one_when_a_process_must_be_killed_after_three_signals() -> None:
    """Its responses break off."""
    supervision = _serving()
    for now_s in (0.0, 0.1, 0.2):
        supervision.asked_to_stop(now_s)
    supervision.exited(Role.ENGINE, 0, 0.3)
    supervision.exited(Role.TOKENIZER, 0, 0.3)
    supervision.tick(0.2 + STOP_GRACE_S)
    assert Kill(Role.API) in _actions(supervision)
    supervision.tick(0.2 + 2 * STOP_GRACE_S)
    assert _actions(supervision) == [Kill(Role.API)]
    supervision.exited(Role.API, -9, 9.0)
    assert supervision.exit_code == 1


def test_exit_code_is_zero_when_three_signals_are_obeyed_in_order() -> None:
    """Open responses were closed with an error."""
    supervision = _serving()
    for now_s in (0.0, 0.1, 0.2):
        supervision.asked_to_stop(now_s)
    _exit_all(supervision, 0.5)
    assert supervision.exit_code == 0


@pytest.mark.parametrize("role", ROLES)
def test_exit_code_is_one_when_a_process_dies_after_the_order_to_stop(role: Role) -> None:
    supervision = _serving()
    supervision.asked_to_stop(0.0)
    supervision.reported(Role.API, Drained(), 1.0)
    supervision.exited(role, -11, 1.1)
    _exit_all(supervision, 1.2)
    assert supervision.exit_code == 1


@pytest.mark.parametrize("role", [Role.ENGINE, Role.TOKENIZER])
def test_exit_code_is_one_when_a_process_dies_while_draining(role: Role) -> None:
    """Its sequences broke off."""
    supervision = _serving()
    supervision.asked_to_stop(0.0)
    supervision.exited(role, -9, 1.0)
    supervision.reported(Role.API, Drained(), 2.0)
    _exit_all(supervision, 3.0)
    assert supervision.exit_code == 1


def _beats(supervision: Supervision, now_s: float, *silent: Role) -> None:
    for role in ROLES:
        if role not in silent:
            supervision.reported(role, Heartbeat(), now_s)


def _pass_time(supervision: Supervision, from_s: float, to_s: float, *silent: Role, step_s: float = 0.5) -> None:
    """Send heartbeats and ticks."""
    now_s = from_s
    while now_s < to_s:
        _beats(supervision, now_s, *silent)
        supervision.tick(now_s)
        now_s += step_s


@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_hangs_for_long_is_killed_once_and_spawned_again(role: Role) -> None:
    """Until then it may come back by itself."""
    supervision = _serving()
    _pass_time(supervision, 0.0, 60.1, role)
    assert Kill(role) not in _actions(supervision)
    _pass_time(supervision, 60.5, 63.0, role)
    assert _actions(supervision).count(Kill(role)) == 1
    supervision.exited(role, -9, 63.0)
    supervision.tick(63.0)
    assert Spawn(role) in _actions(supervision)
    supervision.spawned(role, 200)
    _pass_time(supervision, 63.0, 200.0, role)
    assert Kill(role) not in _actions(supervision), "it loads, and that has no time limit"


def test_engine_is_killed_for_an_endless_step_but_not_for_a_long_one() -> None:
    """The limit is ten times the limit for silence."""
    supervision = _serving()
    limit_s = 60.0 * MAX_STEP_FACTOR
    for step_s in (0.0, 59.0, limit_s):
        _beats(supervision, 0.5, Role.ENGINE)
        supervision.reported(Role.ENGINE, Heartbeat(step_s=step_s), 0.5)
        supervision.tick(0.6)
        assert _actions(supervision) == []
    supervision.reported(Role.ENGINE, Heartbeat(step_s=limit_s + 0.1), 0.7)
    supervision.tick(0.7)
    supervision.tick(0.8)
    assert _actions(supervision) == [Kill(Role.ENGINE)]


def test_no_process_hangs_when_the_supervisor_itself_did_not_run() -> None:
    """The machine slept, or all processes were stopped together."""
    supervision = _serving()
    _pass_time(supervision, 0.0, 5.0)
    supervision.tick(500.0)
    _beats(supervision, 500.2, Role.TOKENIZER)
    supervision.tick(500.2)
    assert _actions(supervision) == []
    _pass_time(supervision, 500.7, 512.0, Role.TOKENIZER)
    assert Send(Role.API, PeerDown(Role.TOKENIZER, hung=True)) in _actions(supervision)


def test_connections_are_answered_when_the_api_process_does_not_come_back() -> None:
    """They wait for a while first. Once the API process serves again, it answers them."""
    supervision = _serving()
    supervision.exited(Role.API, -9, 1.0)
    supervision.tick(1.0)
    supervision.spawned(Role.API, 200)
    _pass_time(supervision, 1.0, 1.0 + STAND_IN_AFTER_S, Role.API)
    assert SetStandIn(True) not in _actions(supervision)
    _pass_time(supervision, 1.0 + STAND_IN_AFTER_S, 13.0, Role.API)
    assert _actions(supervision) == [SetStandIn(True)]
    supervision.reported(Role.API, Ready({}), 13.0)
    supervision.tick(13.1)
    assert _actions(supervision)[-1] == SetStandIn(False)


def test_connections_are_answered_while_the_api_process_hangs() -> None:
    """From when it counts as hung until it responds."""
    supervision = _serving()
    _pass_time(supervision, 0.0, 11.0, Role.API)
    assert SetStandIn(True) in _actions(supervision)
    supervision.reported(Role.API, Heartbeat(), 11.0)
    supervision.tick(11.0)
    assert SetStandIn(False) in _actions(supervision)


def test_connections_are_answered_when_the_api_process_takes_long_to_start() -> None:
    """Also at the first start, until the server stops."""
    supervision = _starting()
    supervision.tick(STAND_IN_AFTER_S)
    assert _actions(supervision) == [SetStandIn(True)]
    supervision.asked_to_stop(STAND_IN_AFTER_S + 1)
    assert _actions(supervision)[:2] == [SetStandIn(False), CloseListener()]


def test_figures_reach_the_api_process_when_they_change() -> None:
    """They are sent again when it restarts. Its own figures are not sent to it."""
    supervision = _serving()
    supervision.reported(Role.ENGINE, Heartbeat(longest_gap_s=0.5, n_dropped=2), 0.1)
    sent = Send(Role.API, ProcessFigures("engine", 0.5, 2))
    assert supervision.effects() == [sent]
    supervision.reported(Role.ENGINE, Heartbeat(longest_gap_s=0.5, n_dropped=2), 0.2)
    supervision.reported(Role.API, Heartbeat(longest_gap_s=0.1, n_dropped=1), 0.2)
    assert supervision.effects() == []
    supervision.exited(Role.API, -9, 1.0)
    supervision.effects()
    supervision.measured("supervisor", 1.5, 0)
    assert supervision.effects() == [], "there is no API process"
    supervision.spawned(Role.API, 200)
    supervision.reported(Role.API, Ready({}), 2.0)
    assert sent in supervision.effects()
