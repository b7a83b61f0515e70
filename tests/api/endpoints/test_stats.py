"""`/stats` shows what every process holds, and which rules are broken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluiceway.api.endpoints.stats import account, ask_for_audit, engine_violations
from sluiceway.ipc.messages.to_api import AuditReport
from sluiceway.types import LiveSequence
from support.asgi_driver import Api
from support.snapshots import engine_stats


def report(**fields: Any) -> AuditReport:
    whole: dict[str, Any] = {
        "query_id": 0,
        "engine": engine_stats(running=1, accepted_total=1, blocks_free=3, blocks_leased=1, blocks_total=4),
        "live": (LiveSequence(rid=7, state="running", known_tokens=5, computed_tokens=4, blocks=1),),
        "violations": (),
        "tokenizer_encoding": 2,
        "tokenizer_decoding": 3,
    }
    return AuditReport(**(whole | fields))


async def test_an_audit_is_answered_by_the_other_processes() -> None:
    api = Api()
    api.upstream.audit = report()
    answer = await ask_for_audit(api.dispatcher)
    assert answer is not None and answer.live[0].rid == 7


async def test_an_audit_ends_after_its_timeout() -> None:
    """A later answer is ignored."""
    api = Api()
    assert await ask_for_audit(api.dispatcher, timeout_s=0.0) is None
    api.dispatcher.receive(report(query_id=1))


async def test_an_audit_ends_immediately_without_a_peer() -> None:
    """The missing peer is known, or the push shows it."""
    api = Api()
    api.upstream.is_gone = True
    assert await ask_for_audit(api.dispatcher) is None
    loading = Api(is_serving=False)
    assert await ask_for_audit(loading.dispatcher) is None
    assert loading.upstream.pushed == []


async def test_an_answer_after_the_client_has_left_is_ignored() -> None:
    """The request was cancelled meanwhile."""
    api = Api()
    asking = asyncio.create_task(ask_for_audit(api.dispatcher))
    await asyncio.sleep(0)
    asking.cancel()
    api.dispatcher.receive(report(query_id=1))
    with pytest.raises(asyncio.CancelledError):
        await asking


def test_the_report_has_a_part_for_each_process() -> None:
    api = Api()
    told = account(api.dispatcher, api.metrics, report(), {"api": 1, "engine": 2})
    assert told["clean"] and not told["stale"] and told["violations"] == []
    assert told["engine"]["running"] == 1
    assert [*told["live"]] == [{"rid": 7, "state": "running", "known_tokens": 5, "computed_tokens": 4, "blocks": 1}]
    assert told["tokenizer"] == {"encoding": 2, "decoding": 3}
    assert told["api"]["sessions"] == 0
    assert told["streams"]["by_state"]["open"] == told["streams"]["backlog_bytes"] == 0
    assert told["streams"]["actions"]["park"] == 0
    assert told["tokens"] == {"generated": 0, "delivered": 0, "wasted": 0, "draft": 0, "accepted_draft": 0}
    assert told["processes"] == {"api": 1, "engine": 2}


def test_the_last_snapshot_is_used_without_a_report() -> None:
    """It is marked as stale. Unknown values are left out."""
    api = Api()
    assert account(api.dispatcher, api.metrics, None, {})["engine"] is None
    api.upstream.say(stats=engine_stats(waiting=1, accepted_total=1))
    told = account(api.dispatcher, api.metrics, None, {})
    assert told["stale"] and told["engine"]["waiting"] == 1 and told["tokenizer"] is None and told["live"] == []


def test_every_violation_is_listed() -> None:
    """The list has the violations of the engine, and those that the numbers show."""
    api = Api()
    broken = report(engine=engine_stats(accepted_total=2, finished_total=2, blocks_total=4), violations=("I2: broken",))
    told = account(api.dispatcher, api.metrics, broken, {})
    assert not told["clean"]
    assert told["violations"] == ["engine: 0 of 4 blocks are accounted for", "I2: broken"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"blocks_free": 1, "blocks_leased": 1, "blocks_fenced": 1, "blocks_cached": 1, "blocks_total": 5}, "4 of 5"),
        ({"accepted_total": 3, "finished_total": 1, "running": 1}, "3 sequences were accepted"),
        ({"accepted_total": 1, "finished_total": 1, "released_total": 2}, "2 sequences were released"),
    ],
)
def test_numbers_that_do_not_agree_are_named(fields: dict[str, int], says: str) -> None:
    """Each rule has its own sentence."""
    (sentence,) = engine_violations(engine_stats(**fields))
    assert says in sentence


def test_numbers_that_agree_are_no_violation() -> None:
    """Running, waiting and paused sequences are live."""
    stats = engine_stats(accepted_total=5, finished_total=2, released_total=1, running=1, waiting=1, paused=1)
    assert engine_violations(stats) == []
