"""A relay between a scripted server and a raw connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluiceway_lab.load.client import record
from sluiceway_lab.load.relay import Cut, relay
from support.scripted_http import STALL, ScriptedServer, plain, scripted_server

BODY = b"0123456789" * 50


async def body_through(script: ScriptedServer, cut: Cut | None) -> bytes:
    lines: list[str] = []

    def choose(line: str) -> Cut | None:
        lines.append(line)
        return cut

    async with relay(script.target, choose) as between:
        request = between.request("GET", "/long")
        reply = (await record(between, request, 10.0)).reply()
    assert lines == ["GET /long HTTP/1.1"]
    return reply.body


async def test_answer_goes_through_whole_where_it_is_not_cut() -> None:
    async with scripted_server({"/long": [plain(200, BODY)]}) as script:
        assert await body_through(script, None) == BODY
        assert await body_through(script, Cut(len(BODY) + 1, resets=False)) == BODY


@pytest.mark.parametrize("n_bytes", [1, 10, 499])
async def test_answer_is_cut_after_so_many_bytes(n_bytes: int) -> None:
    async with scripted_server({"/long": [plain(200, BODY)]}) as script:
        assert await body_through(script, Cut(n_bytes, resets=False)) == BODY[:n_bytes]


async def test_reset_is_felt_as_one() -> None:
    async with scripted_server({"/long": [plain(200, BODY)]}) as script:
        async with relay(script.target, lambda line: Cut(100, resets=True)) as between:
            reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
            writer.write(between.request("GET", "/long"))
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 10.0)
                await asyncio.wait_for(reader.read(), 10.0)
            writer.close()


async def test_server_is_left_when_its_client_leaves() -> None:
    async with scripted_server({"/long": [b"HTTP/1.1 200 OK\r\n\r\n", b"once", STALL]}) as script:
        async with relay(script.target, lambda line: None) as between:
            reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
            writer.write(between.request("GET", "/long"))
            assert await asyncio.wait_for(reader.readuntil(b"once"), 10.0)
            writer.close()
            await asyncio.wait_for(asyncio.gather(*script.answering), 10.0)


async def test_client_is_left_when_its_server_breaks_off() -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    async with scripted_server({"/long": [b"HTTP/1.1 200"]}) as script:
        async with relay(script.target, lambda line: None) as between:
            reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
            writer.write(between.request("GET", "/long"))
            assert await asyncio.wait_for(reader.read(), 10.0) == b""
            writer.close()
    assert faults == []


async def test_client_is_disconnected_if_no_server_listens() -> None:
    async with scripted_server({}) as script:
        nobody = script.target
    async with relay(nobody, lambda line: None) as between:
        reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
        writer.write(between.request("GET", "/long"))
        assert await asyncio.wait_for(reader.read(), 10.0) == b""
        writer.close()
