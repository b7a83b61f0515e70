"""The server is ready when tokenizer and engine serve and can be reached, and it is not draining."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluiceway.api.responses.dispatcher import Dispatcher
from sluiceway.config import StreamsConfig
from sluiceway.ipc.messages.to_api import EngineIsUp
from sluiceway.ipc.messages.to_child import Role
from sluiceway.obs.metrics import Metrics
from sluiceway.refusals import DRAINING, LOADING, unavailable
from support.asgi_driver import FACTS, record_log


def dispatcher(has_peer: Callable[[], bool] = lambda: True) -> Dispatcher:
    return Dispatcher(
        push=lambda message: None,
        has_peer=has_peer,
        next_rid=lambda: 1,
        clock=lambda: 0.0,
        metrics=Metrics(),
        log=record_log()[0],
        max_sequences=4,
        streams=StreamsConfig(),
    )


def serving(has_peer: Callable[[], bool] = lambda: True) -> Dispatcher:
    one = dispatcher(has_peer)
    one.peer_up(Role.TOKENIZER)
    one.peer_up(Role.ENGINE)
    one.receive(EngineIsUp(FACTS))
    return one


def test_it_loads_until_tokenizer_and_engine_have_been_up() -> None:
    """An engine that dies while it loads does not count as a failure of a working server."""
    one = dispatcher()
    assert one.refusal == LOADING
    one.peer_up(Role.ENGINE)
    assert one.refusal == LOADING
    one.peer_down(Role.ENGINE, hung=False)
    assert one.refusal == LOADING
    one.peer_up(Role.TOKENIZER)
    one.receive(EngineIsUp(FACTS))
    assert one.refusal == LOADING
    one.peer_up(Role.ENGINE)
    assert one.refusal is None


def test_it_is_unavailable_while_a_process_is_down() -> None:
    one = serving()
    one.peer_down(Role.TOKENIZER, hung=False)
    assert one.refusal == unavailable("tokenizer")
    one.peer_up(Role.TOKENIZER)
    one.receive(EngineIsUp(FACTS))
    assert one.refusal is None


@pytest.mark.parametrize("role", [Role.ENGINE, Role.TOKENIZER])
def test_a_replaced_process_counts_when_the_engine_was_heard_again(role: Role) -> None:
    """The report of the supervisor does not mean that the pipes are connected."""
    one = serving()
    one.peer_down(role, hung=False)
    one.peer_up(role)
    seen = [one.refusal]
    one.receive(EngineIsUp(FACTS))
    assert [*seen, one.refusal] == [unavailable("engine", "is not connected"), None]


def test_it_is_unavailable_while_a_process_hangs() -> None:
    """It is ready when that process is up again, by itself or after it died."""
    one = serving()
    one.peer_down(Role.ENGINE, hung=True)
    seen = [one.refusal]
    one.peer_up(Role.ENGINE)
    seen.append(one.refusal)
    one.peer_down(Role.ENGINE, hung=True)
    one.peer_down(Role.ENGINE, hung=False)
    one.peer_up(Role.ENGINE)
    one.receive(EngineIsUp(FACTS))
    assert [*seen, one.refusal] == [unavailable("engine", "does not respond"), None, None]


def test_it_is_unavailable_while_the_pipe_is_not_connected() -> None:
    """A process that has just started needs a moment. A killed process is gone before its end is reported."""
    connected = [False]
    one = serving(lambda: connected[0])
    seen = [one.refusal]
    connected[0] = True
    assert [*seen, one.refusal] == [unavailable("tokenizer", "is not connected"), None]


def test_draining_never_ends() -> None:
    one = serving()
    one.drain()
    one.peer_up(Role.ENGINE)
    assert one.refusal == DRAINING
