"""The server is ready when tokenizer and engine serve, and it is not leaving."""

from __future__ import annotations

from sluiceway.messages.to_child import Role
from sluiceway.procs.api_readiness import Readiness
from sluiceway.procs.api_refusals import DRAINING, ENGINE_UNAVAILABLE, LOADING


def serving() -> Readiness:
    readiness = Readiness()
    readiness.went_up(Role.TOKENIZER)
    readiness.went_up(Role.ENGINE)
    return readiness


def test_it_loads_until_both_have_been_up() -> None:
    """An engine that dies while it loads does not make it a failure of a server that worked."""
    readiness = Readiness()
    assert readiness.refusal == LOADING
    readiness.went_up(Role.ENGINE)
    assert readiness.refusal == LOADING
    readiness.died(Role.ENGINE)
    assert readiness.refusal == LOADING
    assert serving().refusal is None


def test_it_is_unavailable_while_one_is_down() -> None:
    """Until it is up again."""
    readiness = serving()
    readiness.died(Role.TOKENIZER)
    assert readiness.refusal == ENGINE_UNAVAILABLE
    readiness.went_up(Role.TOKENIZER)
    assert readiness.refusal is None


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
    assert [*seen, readiness.refusal] == [ENGINE_UNAVAILABLE, None, None]


def test_draining_is_for_good() -> None:
    """Whoever comes up then, comes too late."""
    readiness = serving()
    readiness.drain()
    readiness.went_up(Role.ENGINE)
    assert readiness.refusal == DRAINING
