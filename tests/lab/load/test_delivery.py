"""The delivery process, its two forms of waiting events, and readers that read or stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from sluiceway.ipc.messages.to_api import Delta
from sluiceway.ipc.messages.to_tokenizer import TextPrompt
from sluiceway.protocols.common.generation import Framer, GenerationRequest
from sluiceway.protocols.native.framer import NativeFramer
from sluiceway.protocols.openai.framer import ChatFramer, CompletionFramer
from sluiceway.response import readers
from sluiceway.sse.decoder import EventDecoder
from sluiceway.types import SamplingParams
from sluiceway_lab.load.client import LoadError, dial
from sluiceway_lab.load.delivery import (
    WRITE_BYTES,
    DeliveryConfig,
    EventFormat,
    FormatTime,
    MadeToken,
    Spent,
    SpokenProtocol,
    WaitingEvents,
    WriteBacklog,
    delivery,
)

TIMES: tuple[FormatTime, ...] = get_args(FormatTime)
SPOKEN: tuple[SpokenProtocol, ...] = get_args(SpokenProtocol)
TOKENS = [MadeToken(0, f" w{number}", (number,)) for number in range(50)]
SMALL = DeliveryConfig(format_time="when made", spoken="completions", model="m", n_readers=2, n_tokens=30, waits=True)


def waiting(format_time: FormatTime, spoken: SpokenProtocol, *, model: str = "m") -> WaitingEvents:
    config = msgspec.structs.replace(SMALL, format_time=format_time, spoken=spoken, model=model)
    return WaitingEvents(config)


def taken(waiting: WaitingEvents, every: int) -> list[bytes]:
    """What is taken after every few tokens, until nothing is left."""
    pieces = []
    for number, token in enumerate(TOKENS, 1):
        waiting.add(token)
        while number % every == 0 and (data := waiting.take()):
            pieces.append(data)
    while data := waiting.take():
        pieces.append(data)
    return pieces


def product_framer(spoken: SpokenProtocol) -> Framer:
    request = GenerationRequest(
        model="m",
        prompts=(TextPrompt("x"),),
        n=1,
        sampling=SamplingParams(max_tokens=len(TOKENS) + 1),
        stop=(),
        stream=True,
        include_usage=True,
    )
    makers: dict[SpokenProtocol, Callable[[GenerationRequest, str, int], Framer]] = {
        "chat": ChatFramer,
        "completions": CompletionFramer,
        "native": NativeFramer,
    }
    return makers[spoken](request, "cmpl-0123456789abcdef0123456789abcdef", 1_800_000_000)


@pytest.mark.parametrize("spoken", SPOKEN)
def test_events_are_those_of_the_product(spoken: SpokenProtocol) -> None:
    framer, own = product_framer(spoken), EventFormat(spoken, "m")
    for token in TOKENS:
        assert own.event(token) == framer.delta(0, Delta(0, token.text, token.token_ids))


def test_writes_are_as_long_as_those_of_the_product() -> None:
    assert WRITE_BYTES == readers.WRITE_BYTES


@pytest.mark.parametrize("spoken", SPOKEN)
@pytest.mark.parametrize("format_time", TIMES)
def test_reader_gets_every_text_in_order(format_time: FormatTime, spoken: SpokenProtocol) -> None:
    for every in (1, 7, len(TOKENS) + 1):
        events = list(EventDecoder().feed(b"".join(taken(waiting(format_time, spoken), every))))
        assert len(events) == len(TOKENS)
        assert all(f'"{token.text}"' in event.data for event, token in zip(events, TOKENS, strict=True))


@pytest.mark.parametrize("spoken", SPOKEN)
def test_both_forms_give_the_same_bytes(spoken: SpokenProtocol) -> None:
    made, written = (b"".join(taken(waiting(format_time, spoken), 3)) for format_time in TIMES)
    assert made == written


@pytest.mark.parametrize("format_time", TIMES)
def test_one_write_is_of_bounded_length(format_time: FormatTime) -> None:
    """A write exceeds the bound by at most one event."""
    pieces = taken(waiting(format_time, "chat", model="x" * 20_000), len(TOKENS) + 1)
    assert max(map(len, pieces)) < WRITE_BYTES + 21_000 and len(pieces) > len(TOKENS) / 5


@pytest.mark.parametrize("format_time", TIMES)
def test_waiting_events_are_counted(format_time: FormatTime) -> None:
    one = waiting(format_time, "native")
    for token in TOKENS:
        one.add(token)
    assert len(one) == len(TOKENS)
    assert one.take() and (len(one), one.take()) == (0, b"")


async def whole(config: DeliveryConfig, *, stalls: bool = False) -> tuple[WriteBacklog, Spent, list[bytes]]:
    """The two reports of the process, and what each reader received."""
    async with delivery(config) as server:
        begin = asyncio.Event()

        async def read() -> bytes:
            async with dial(server.target, is_narrow=True) as connection:
                if stalls:
                    connection.stall()
                    await begin.wait()
                    connection.resume()
                return await connection.read_rest(10)

        reading = [asyncio.create_task(read()) for _ in range(config.n_readers)]
        backlog = await server.report(WriteBacklog)
        begin.set()
        spent = await server.report(Spent)
        return backlog, spent, await asyncio.gather(*reading)


@pytest.mark.e2e
async def test_every_reader_gets_every_token() -> None:
    backlog, spent, bodies = await whole(SMALL)
    assert [len(list(EventDecoder().feed(body))) for body in bodies] == [30, 30]
    assert backlog.n_events == 0
    assert spent.n_events == 60 and spent.cpu_s > 0


@pytest.mark.e2e
@pytest.mark.parametrize("format_time", TIMES)
async def test_backlog_of_a_stopped_reader_is_all_events(format_time: FormatTime) -> None:
    """A megabyte of events waits in one form, and almost nothing in the other."""
    config = msgspec.structs.replace(SMALL, format_time=format_time, model="x" * 32_768, n_readers=1, waits=False)
    backlog, spent, (body,) = await whole(config, stalls=True)
    assert backlog.n_events == 30
    assert (backlog.grown_bytes > backlog.n_events * 32_768 / 2) == (format_time == "when made")
    assert len(list(EventDecoder().feed(body))) == spent.n_events == 30


@pytest.mark.e2e
async def test_process_that_ends_says_why() -> None:
    unfit: Any = "two"
    with pytest.raises(LoadError, match="^the delivering process has ended: .*int"):
        async with delivery(msgspec.structs.replace(SMALL, n_readers=unfit)):
            raise AssertionError("it has started")
