"""The supervisor's mind: who is spawned, told and killed, phase by phase."""

from __future__ import annotations

import pytest

from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, ProcessFigures, Role, Stop
from sluiceway.ipc.messages.to_supervisor import Drained, Failed, Heartbeat, Ready
from sluiceway.supervisor.supervision import (
    MAX_RESTARTS,
    MAX_STEP_FACTOR,
    STAND_IN_AFTER_S,
    STOP_GRACE_S,
    Announce,
    AnswerInstead,
    CloseListener,
    Effect,
    Kill,
    Phase,
    Spawn,
    Supervision,
    Tell,
)

ROLES = (Role.ENGINE, Role.TOKENIZER, Role.API)


def _deeds(mind: Supervision) -> list[Effect]:
    """The effects but what only the log and the metrics see."""
    return [effect for effect in mind.effects() if not isinstance(effect, Announce) and not _is_figures(effect)]


def _is_figures(effect: Effect) -> bool:
    return isinstance(effect, Tell) and isinstance(effect.message, ProcessFigures)


def _starting() -> Supervision:
    mind = Supervision(drain_timeout_s=30.0, heartbeat_timeout_s=10.0, restart_hung_after_s=60.0)
    mind.started(0.0)
    assert _deeds(mind) == [Spawn(role) for role in ROLES]
    for pid, role in enumerate(ROLES, start=100):
        mind.spawned(role, pid)
    return mind


def _serving(now_s: float = 0.0) -> Supervision:
    mind = _starting()
    for role in ROLES:
        mind.reported(role, Ready({}), now_s)
    assert mind.phase is Phase.SERVING
    mind.effects()
    return mind


def _exit_all(mind: Supervision, now_s: float) -> None:
    for role in ROLES:
        mind.exited(role, 0, now_s)


def test_peers_learn_of_each_other_when_they_become_ready() -> None:
    """Whoever comes later is told of those before it, and they of it."""
    mind = _starting()
    mind.reported(Role.ENGINE, Ready({}), 0.0)
    assert _deeds(mind) == []
    mind.reported(Role.API, Ready({}), 0.0)
    assert _deeds(mind) == [Tell(Role.ENGINE, PeerUp(Role.API, 102)), Tell(Role.API, PeerUp(Role.ENGINE, 100))]
    assert mind.phase is Phase.STARTING


def test_address_is_announced_when_the_server_serves() -> None:
    """What the API process found, once everybody is ready: a person copies it."""
    mind = _starting()
    for role in ROLES:
        mind.reported(role, Ready({"url": "http://127.0.0.1:8000"} if role is Role.API else {"blocks": 7}), 0.0)
    assert Announce("serving", {"url": "http://127.0.0.1:8000"}) in mind.effects()


def test_exit_code_is_one_when_a_process_cannot_start() -> None:
    """Its own words are announced, the others are ended, those that load are killed."""
    mind = _starting()
    mind.reported(Role.API, Ready({}), 0.0)
    mind.effects()
    mind.reported(Role.ENGINE, Failed("no such model"), 1.0)
    effects = mind.effects()
    assert any(isinstance(effect, Announce) and effect.fields.get("why") == "no such model" for effect in effects)
    assert {Kill(Role.ENGINE), Kill(Role.TOKENIZER), Tell(Role.API, Stop())} <= set(map(_hashable, effects))
    _exit_all(mind, 2.0)
    assert mind.exit_code == 1


def _hashable(effect: Effect) -> Effect:
    return Kill(Role.API) if isinstance(effect, Announce) else effect


def test_exit_code_is_one_when_a_process_dies_while_starting() -> None:
    """A death before the server ever served is final: starting again would end the same way."""
    mind = _starting()
    mind.exited(Role.TOKENIZER, -9, 0.0)
    assert set(_deeds(mind)) == {CloseListener(), Kill(Role.ENGINE), Kill(Role.API)}
    mind.exited(Role.ENGINE, -9, 0.0)
    assert mind.exit_code is None
    mind.exited(Role.API, -9, 0.0)
    assert mind.exit_code == 1


def test_dead_engine_is_announced_and_spawned_again_when_serving() -> None:
    """Peers are told at once; the first restart does not wait."""
    mind = _serving()
    mind.exited(Role.ENGINE, -9, 5.0)
    assert _deeds(mind) == [Tell(Role.TOKENIZER, PeerDown(Role.ENGINE)), Tell(Role.API, PeerDown(Role.ENGINE))]
    mind.tick(5.0)
    assert _deeds(mind) == [Spawn(Role.ENGINE)]
    mind.tick(5.1)
    assert _deeds(mind) == []


def test_restarts_wait_longer_when_deaths_repeat() -> None:
    """The second restart waits half a second, the third a second."""
    mind = _serving()
    for now_s, pause_s in ((0.0, 0.0), (1.0, 0.5), (3.0, 1.0)):
        mind.exited(Role.ENGINE, 1, now_s)
        mind.effects()
        if pause_s:
            mind.tick(now_s + pause_s - 0.01)
            assert _deeds(mind) == []
        mind.tick(now_s + pause_s)
        assert _deeds(mind) == [Spawn(Role.ENGINE)]
        mind.spawned(Role.ENGINE, 200)


def test_old_deaths_are_forgotten_when_a_minute_has_passed() -> None:
    """A process that dies once an hour is restarted for ever."""
    mind = _serving()
    for hour in range(MAX_RESTARTS * 3):
        now_s = hour * 3600.0
        mind.exited(Role.ENGINE, 1, now_s)
        mind.tick(now_s)
        assert Spawn(Role.ENGINE) in _deeds(mind)
        mind.spawned(Role.ENGINE, 200)


def test_server_gives_up_when_a_process_keeps_dying() -> None:
    """Exit code 1 after too many deaths in a minute."""
    mind = _serving()
    for i in range(MAX_RESTARTS):
        mind.exited(Role.ENGINE, 1, float(i))
        mind.spawned(Role.ENGINE, 200 + i)
    assert mind.phase is Phase.SERVING
    mind.exited(Role.ENGINE, 1, float(MAX_RESTARTS))
    _exit_all(mind, 20.0)
    assert mind.exit_code == 1


def test_peers_are_told_when_a_process_hangs_and_when_it_responds_again() -> None:
    """It is not killed: it may come back with everything that it holds."""
    mind = _serving(now_s=0.0)
    for role in (Role.TOKENIZER, Role.API):
        mind.reported(role, Heartbeat(), 9.9)
    mind.tick(10.1)
    down = PeerDown(Role.ENGINE, hung=True)
    assert _deeds(mind) == [Tell(Role.TOKENIZER, down), Tell(Role.API, down)]
    mind.tick(10.2)
    assert _deeds(mind) == []
    mind.reported(Role.ENGINE, Heartbeat(), 11.0)
    assert _deeds(mind) == [Tell(Role.TOKENIZER, PeerUp(Role.ENGINE, 100)), Tell(Role.API, PeerUp(Role.ENGINE, 100))]


def test_server_drains_then_stops_when_asked_once() -> None:
    """Drain, Drained, Stop, exits, code 0."""
    mind = _serving()
    mind.asked_to_stop(1.0)
    assert _deeds(mind) == [Tell(Role.API, Drain(30.0))]
    mind.tick(2.0)
    mind.reported(Role.API, Drained(), 3.0)
    assert _deeds(mind) == [CloseListener(), *(Tell(role, Stop()) for role in ROLES)]
    mind.reported(Role.API, Drained(), 3.0)
    assert _deeds(mind) == []
    assert not _has_ended(mind)
    _exit_all(mind, 4.0)
    assert _has_ended(mind)
    assert mind.exit_code == 0
    assert mind.effects()[-1] == Announce("ended", {"exit_code": 0}), "the last word of a log"
    mind.tick(5.0)
    mind.asked_to_stop(5.0)
    assert _deeds(mind) == []


def _has_ended(mind: Supervision) -> bool:
    return mind.exit_code is not None


def test_drain_is_cut_short_when_asked_twice_and_skipped_when_asked_three_times() -> None:
    """Impatience is understood."""
    mind = _serving()
    mind.asked_to_stop(1.0)
    mind.effects()
    mind.asked_to_stop(2.0)
    assert _deeds(mind) == [Tell(Role.API, Drain(0.0))]
    mind.asked_to_stop(3.0)
    assert _deeds(mind) == [CloseListener(), *(Tell(role, Stop()) for role in ROLES)]


def test_server_stops_at_once_when_asked_before_it_serves() -> None:
    """There is nothing to drain; a start that was called off is no failure."""
    mind = _starting()
    mind.asked_to_stop(1.0)
    assert _deeds(mind) == [CloseListener(), *(Kill(role) for role in ROLES)]
    _exit_all(mind, 1.0)
    assert mind.exit_code == 0


def test_stop_follows_when_the_drain_never_ends() -> None:
    """The deadline is the drain timeout and some grace; then stop, then kill."""
    mind = _serving()
    mind.asked_to_stop(0.0)
    mind.effects()
    mind.tick(30.0 + STOP_GRACE_S)
    assert _deeds(mind) == [CloseListener(), *(Tell(role, Stop()) for role in ROLES)]
    mind.exited(Role.API, 0, 36.0)
    mind.tick(30.0 + 2 * STOP_GRACE_S)
    assert _deeds(mind) == [Kill(Role.ENGINE), Kill(Role.TOKENIZER)]
    mind.tick(30.0 + 2 * STOP_GRACE_S + 1)
    assert _deeds(mind) == []


@pytest.mark.parametrize("role", [Role.ENGINE, Role.TOKENIZER])
def test_api_is_told_when_a_peer_dies_while_draining(role: Role) -> None:
    """The API process ends what is open itself; nothing is spawned for the last minute."""
    mind = _serving()
    mind.asked_to_stop(0.0)
    mind.effects()
    mind.exited(role, -9, 1.0)
    deeds = _deeds(mind)
    assert Tell(Role.API, PeerDown(role)) in deeds
    mind.tick(2.0)
    assert _deeds(mind) == []


def test_exit_code_is_one_when_the_api_dies_while_draining() -> None:
    """What was open is lost, so the drain failed."""
    mind = _serving()
    mind.asked_to_stop(0.0)
    mind.exited(Role.API, -9, 1.0)
    _exit_all(mind, 2.0)
    assert mind.exit_code == 1


def test_failed_restart_is_announced_when_serving() -> None:
    """A process that fails to start again counts as a death when it exits, not before."""
    mind = _serving()
    mind.exited(Role.ENGINE, -9, 0.0)
    mind.effects()
    mind.reported(Role.ENGINE, Failed("out of memory"), 1.0)
    assert mind.phase is Phase.SERVING
    assert _deeds(mind) == []


def test_drained_is_ignored_when_nobody_asked() -> None:
    """A stray report changes nothing."""
    mind = _serving()
    mind.reported(Role.API, Drained(), 1.0)
    assert mind.phase is Phase.SERVING


def test_server_stops_when_asked_while_the_api_is_down() -> None:
    """Without the API process there is nobody to drain."""
    mind = _serving()
    mind.exited(Role.API, -9, 0.0)
    mind.effects()
    mind.asked_to_stop(0.1)
    assert _deeds(mind) == [CloseListener(), Tell(Role.ENGINE, Stop()), Tell(Role.TOKENIZER, Stop())]


@pytest.mark.parametrize("code", [1, 2, 3])
def test_exit_code_is_the_one_of_the_process_that_cannot_start(code: int) -> None:
    """A setting that is wrong, a model that cannot be read: what the command line says of them too."""
    mind = _starting()
    mind.reported(Role.ENGINE, Failed("no", code), 1.0)
    mind.exited(Role.ENGINE, 1, 1.1)
    _exit_all(mind, 2.0)
    assert mind.exit_code == code


def test_exit_code_is_one_when_a_drain_is_not_answered() -> None:
    """The API process was stopped, or hangs: its streams are cut without a word."""
    mind = _serving()
    mind.asked_to_stop(0.0)
    mind.tick(30.0 + STOP_GRACE_S)
    mind.effects()
    mind.tick(30.0 + 2 * STOP_GRACE_S)
    assert Kill(Role.API) in _deeds(mind)
    for role in ROLES:
        mind.exited(role, -9, 41.0)
    assert mind.exit_code == 1


def test_exit_code_is_one_when_a_process_must_be_killed_after_three_signals() -> None:
    """Who asked three times did not ask for answers that break off."""
    mind = _serving()
    for now_s in (0.0, 0.1, 0.2):
        mind.asked_to_stop(now_s)
    mind.exited(Role.ENGINE, 0, 0.3)
    mind.exited(Role.TOKENIZER, 0, 0.3)
    mind.tick(0.2 + STOP_GRACE_S)
    assert Kill(Role.API) in _deeds(mind)
    mind.tick(0.2 + 2 * STOP_GRACE_S)
    assert _deeds(mind) == [Kill(Role.API)]
    mind.exited(Role.API, -9, 9.0)
    assert mind.exit_code == 1


def test_exit_code_is_zero_when_three_signals_are_obeyed_in_order() -> None:
    """What was open was ended with an error that says so."""
    mind = _serving()
    for now_s in (0.0, 0.1, 0.2):
        mind.asked_to_stop(now_s)
    _exit_all(mind, 0.5)
    assert mind.exit_code == 0


@pytest.mark.parametrize("role", ROLES)
def test_exit_code_is_one_when_a_process_dies_after_it_was_told_to_stop(role: Role) -> None:
    """It did not leave in order."""
    mind = _serving()
    mind.asked_to_stop(0.0)
    mind.reported(Role.API, Drained(), 1.0)
    mind.exited(role, -11, 1.1)
    _exit_all(mind, 1.2)
    assert mind.exit_code == 1


@pytest.mark.parametrize("role", [Role.ENGINE, Role.TOKENIZER])
def test_exit_code_is_one_when_a_process_dies_while_draining(role: Role) -> None:
    """What ran in it broke off."""
    mind = _serving()
    mind.asked_to_stop(0.0)
    mind.exited(role, -9, 1.0)
    mind.reported(Role.API, Drained(), 2.0)
    _exit_all(mind, 3.0)
    assert mind.exit_code == 1


def _beats(mind: Supervision, now_s: float, *silent: Role) -> None:
    for role in ROLES:
        if role not in silent:
            mind.reported(role, Heartbeat(), now_s)


def _pass_time(mind: Supervision, from_s: float, to_s: float, *silent: Role, step_s: float = 0.5) -> None:
    """Ticks and heartbeats."""
    now_s = from_s
    while now_s < to_s:
        _beats(mind, now_s, *silent)
        mind.tick(now_s)
        now_s += step_s


@pytest.mark.parametrize("role", ROLES)
def test_a_process_that_hangs_for_long_is_killed_once_and_spawned_again(role: Role) -> None:
    """It may come back by itself until then."""
    mind = _serving()
    _pass_time(mind, 0.0, 60.1, role)
    assert Kill(role) not in _deeds(mind)
    _pass_time(mind, 60.5, 63.0, role)
    assert _deeds(mind).count(Kill(role)) == 1
    mind.exited(role, -9, 63.0)
    mind.tick(63.0)
    assert Spawn(role) in _deeds(mind)
    mind.spawned(role, 200)
    _pass_time(mind, 63.0, 200.0, role)
    assert Kill(role) not in _deeds(mind), "it loads, and nothing is known of how long that takes"


def test_a_long_step_is_no_hang_and_one_that_never_ends_is() -> None:
    """A step of minutes makes nobody unhealthy; after ten times the limit for silence the engine is started again."""
    mind = _serving()
    limit_s = 60.0 * MAX_STEP_FACTOR
    for step_s in (0.0, 59.0, limit_s):
        _beats(mind, 0.5, Role.ENGINE)
        mind.reported(Role.ENGINE, Heartbeat(step_s=step_s), 0.5)
        mind.tick(0.6)
        assert _deeds(mind) == []
    mind.reported(Role.ENGINE, Heartbeat(step_s=limit_s + 0.1), 0.7)
    mind.tick(0.7)
    mind.tick(0.8)
    assert _deeds(mind) == [Kill(Role.ENGINE)]


def test_nobody_hangs_when_the_supervisor_itself_did_not_run() -> None:
    """A machine that slept, or a group of processes that was stopped: all of them were silent."""
    mind = _serving()
    _pass_time(mind, 0.0, 5.0)
    mind.tick(500.0)
    _beats(mind, 500.2, Role.TOKENIZER)
    mind.tick(500.2)
    assert _deeds(mind) == []
    _pass_time(mind, 500.7, 512.0, Role.TOKENIZER)
    assert Tell(Role.API, PeerDown(Role.TOKENIZER, hung=True)) in _deeds(mind)


def test_connections_are_answered_when_the_api_process_does_not_come_back() -> None:
    """For a while they wait; once it serves again they are its own."""
    mind = _serving()
    mind.exited(Role.API, -9, 1.0)
    mind.tick(1.0)
    mind.spawned(Role.API, 200)
    _pass_time(mind, 1.0, 1.0 + STAND_IN_AFTER_S, Role.API)
    assert AnswerInstead(True) not in _deeds(mind)
    _pass_time(mind, 1.0 + STAND_IN_AFTER_S, 13.0, Role.API)
    assert _deeds(mind) == [AnswerInstead(True)]
    mind.reported(Role.API, Ready({}), 13.0)
    mind.tick(13.1)
    assert _deeds(mind)[-1] == AnswerInstead(False)


def test_connections_are_answered_while_the_api_process_hangs() -> None:
    """From when it counts as hung until it responds again."""
    mind = _serving()
    _pass_time(mind, 0.0, 11.0, Role.API)
    assert AnswerInstead(True) in _deeds(mind)
    mind.reported(Role.API, Heartbeat(), 11.0)
    mind.tick(11.0)
    assert AnswerInstead(False) in _deeds(mind)


def test_connections_are_answered_when_the_api_process_takes_long_to_start() -> None:
    """Also the first time; and no more once the server stops."""
    mind = _starting()
    mind.tick(STAND_IN_AFTER_S)
    assert _deeds(mind) == [AnswerInstead(True)]
    mind.asked_to_stop(STAND_IN_AFTER_S + 1)
    assert _deeds(mind)[:2] == [AnswerInstead(False), CloseListener()]


def test_figures_reach_the_api_process_when_they_change() -> None:
    """And when it starts again; its own it knows."""
    mind = _serving()
    mind.reported(Role.ENGINE, Heartbeat(longest_gap_s=0.5, n_dropped=2), 0.1)
    told = Tell(Role.API, ProcessFigures("engine", 0.5, 2))
    assert mind.effects() == [told]
    mind.reported(Role.ENGINE, Heartbeat(longest_gap_s=0.5, n_dropped=2), 0.2)
    mind.reported(Role.API, Heartbeat(longest_gap_s=0.1, n_dropped=1), 0.2)
    assert mind.effects() == []
    mind.exited(Role.API, -9, 1.0)
    mind.effects()
    mind.measured("supervisor", 1.5, 0)
    assert mind.effects() == [], "there is nobody to tell"
    mind.spawned(Role.API, 200)
    mind.reported(Role.API, Ready({}), 2.0)
    assert told in mind.effects()
