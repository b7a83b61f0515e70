"""Fronts of a real server: they send the same responses, and differ when a client leaves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from sluiceway_lab.experiments.gauge import LIMIT_S
from sluiceway_lab.experiments.native import generate_request, stream_request
from sluiceway_lab.load.client import dial, get, record
from sluiceway_lab.load.processes import front_server, own_server
from sluiceway_lab.load.target_server import TargetServer, meet

KINDS = ["starlette", "write-only", "naive"]


@contextlib.asynccontextmanager
async def fronted(kind: str) -> AsyncIterator[tuple[TargetServer, TargetServer]]:
    """The front, and the server behind it."""
    with own_server("fake", ["--fake-step", "0.005"]) as server:
        await server.ready()
        with front_server(kind, server.target) as front:
            await front.ready()
            yield await meet(front.target), await meet(server.target)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
async def test_responses_are_those_of_the_server_behind(kind: str) -> None:
    async with fronted(kind) as (front, behind):
        for make in (stream_request, generate_request):
            replies = [(await record(one.target, make(one, "once upon", 9))).reply() for one in (front, behind)]
            bodies = [reply.body.partition(b'"text"')[2] for reply in replies]
            assert replies[0].status == replies[1].status == 200 and bodies[0]
            assert bodies[0].count(b"text") == bodies[1].count(b"text")
        refused = (await record(front.target, generate_request(front, "x", -1))).reply()
        assert refused.status == 400 and b"max_tokens" in refused.body
        assert (await get(front.target, "/v1/models")).body == (await get(behind.target, "/v1/models")).body


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("kind", "is_streamed", "is_noticed"),
    [
        ("starlette", True, True),
        ("starlette", False, False),
        ("write-only", True, False),
        ("write-only", False, False),
        ("naive", True, True),
    ],
)
async def test_a_client_that_leaves_is_noticed_or_not(kind: str, is_streamed: bool, is_noticed: bool) -> None:
    n_tokens = 300
    async with fronted(kind) as (front, behind):
        make = stream_request if is_streamed else generate_request
        async with dial(front.target) as connection:
            connection.send(make(front, "once upon", n_tokens))
            if is_streamed:
                assert await connection.read_some(LIMIT_S)
            else:
                while await behind.is_idle():
                    pass
            connection.reset()
        while not await behind.is_idle():
            pass
        samples = await behind.samples()
    n_generated = sum(value for name, value in samples.items() if "generated_tokens_total" in str(name))
    assert (n_generated < n_tokens) is is_noticed
