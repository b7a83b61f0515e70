"""Readers of scripted streams."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sluiceway_lab.experiments.readers import CUT, LEFT, WHOLE, Habit, Reading, read
from sluiceway_lab.load.client import Target

EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"too slow","code":"slow_client"}}\n\n'


async def answered(pieces: list[bytes], habit: Habit) -> Reading:
    """What a reader gets of these pieces, which are written separately, before the server closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        closed.set()

    closed = asyncio.Event()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        target = Target("127.0.0.1", server.sockets[0].getsockname()[1])
        reading = await read(target, target.request("GET", "/"), habit)
        await closed.wait()
        return reading


@pytest.mark.parametrize(
    ("last", "end"), [(DONE, WHOLE), (ERROR + DONE, "slow_client"), (b"", CUT)], ids=["whole", "error", "cut"]
)
def test_reader_knows_how_its_stream_ended(last: bytes, end: str) -> None:
    reading = asyncio.run(answered([EVENT * 3 + last], Habit()))
    assert (reading.end, reading.n_tokens) == (end, 3)
    assert reading.n_bytes == len(EVENT * 3 + last)


@pytest.mark.parametrize("resets", [False, True])
def test_reader_leaves_after_its_tokens(resets: bool) -> None:
    reading = asyncio.run(answered([EVENT] * 8 + [DONE], Habit(n_tokens=1, resets=resets)))
    assert reading.end == LEFT
    assert reading.n_tokens >= 1


@pytest.mark.parametrize("habit", [Habit(n_tokens=0), Habit(n_reads=0), Habit(for_s=-1.0)])
def test_reader_leaves_before_its_first_token_when_a_limit_is_already_reached(habit: Habit) -> None:
    reading = asyncio.run(answered([EVENT, DONE], habit))
    assert (reading.end, reading.n_tokens, reading.completion_s) == (LEFT, 0, 0.0)


def test_slow_reader_on_a_narrow_connection_gets_everything() -> None:
    reading = asyncio.run(answered([EVENT * 400 + DONE], Habit(sleep_s=0.0001, is_narrow=True)))
    assert (reading.end, reading.n_tokens) == (WHOLE, 400)
    assert reading.completion_s > 0


@pytest.mark.parametrize("size", [1, 3, 7, 8, 40])
def test_token_counts_once_however_its_event_is_cut(size: int) -> None:
    """A pattern that spans two reads counts once."""
    raw = EVENT * 5
    reading = Reading(0.0)
    for start in range(0, len(raw), size):
        reading.take(raw[start : start + size])
    assert reading.n_tokens == 5
    assert len(reading.itls_s) == 4
