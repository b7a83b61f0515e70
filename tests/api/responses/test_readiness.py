"""The server is ready when tokenizer and engine serve, and it is not leaving."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluiceway.api.responses.readiness import Readiness
from sluiceway.ipc.messages.to_child import Role
from sluiceway.refusals import DRAINING, LOADING, unavailable


def serving(has_peer: Callable[[], bool] = lambda: True) -> Readiness:
    readiness = Readiness(has_peer)
    readiness.went_up(Role.TOKENIZER)
    readiness.went_up(Role.ENGINE)
    readiness.engine_heard()
    return readiness


def test_it_loads_until_both_have_been_up() -> None:
    """An engine that dies while it loads does not make it a failure of a server that worked."""
    readiness = Readiness(lambda: True)
    assert readiness.refusal == LOADING
    readiness.went_up(Role.ENGINE)
    assert readiness.refusal == LOADING
    readiness.died(Role.ENGINE)
    assert readiness.refusal == LOADING
    readiness.went_up(Role.TOKENIZER)
    readiness.engine_heard()
    assert readiness.refusal == LOADING
    readiness.went_up(Role.ENGINE)
    assert readiness.refusal is None


def test_it_is_unavailable_while_one_is_down() -> None:
    """Until it is up again, and the engine has found its new pipe."""
    readiness = serving()
    readiness.died(Role.TOKENIZER)
    assert readiness.refusal == unavailable("tokenizer")
    readiness.went_up(Role.TOKENIZER)
    readiness.engine_heard()
    assert readiness.refusal is None


@pytest.mark.parametrize("role", [Role.ENGINE, Role.TOKENIZER])
def test_it_waits_for_the_engine_to_be_heard_when_one_is_new(role: Role) -> None:
    """The supervisor's word alone does not mean that the pipes are connected; what was heard before is void."""
    readiness = serving()
    readiness.died(role)
    readiness.went_up(role)
    seen = [readiness.refusal]
    readiness.engine_heard()
    assert [*seen, readiness.refusal] == [unavailable("engine", "is not connected"), None]


def test_it_is_unavailable_while_one_hangs() -> None:
    """Until that is up again, by itself or after it died."""
    readiness = serving()
    readiness.hangs(Role.ENGINE)
    seen = [readiness.refusal]
    readiness.went_up(Role.ENGINE)
    seen.append(readiness.refusal)
    readiness.hangs(Role.ENGINE)
    readiness.died(Role.ENGINE)
    readiness.went_up(Role.ENGINE)
    readiness.engine_heard()
    assert [*seen, readiness.refusal] == [unavailable("engine", "does not respond"), None, None]


def test_it_is_unavailable_while_the_pipe_is_not_connected() -> None:
    """A process that has just started needs a moment, and one that was killed is gone before anybody says so."""
    connected = [False]
    readiness = serving(lambda: connected[0])
    seen = [readiness.refusal]
    connected[0] = True
    assert [*seen, readiness.refusal] == [unavailable("tokenizer", "is not connected"), None]


def test_draining_is_for_good() -> None:
    """Whoever comes up then, comes too late."""
    readiness = serving()
    readiness.drain()
    readiness.went_up(Role.ENGINE)
    assert readiness.refusal == DRAINING
