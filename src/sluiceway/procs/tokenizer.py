"""The tokenizer process: the loop and the sockets around a `Translator`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, assert_never

import zmq

from sluiceway.messages.codec import Decoder
from sluiceway.messages.to_api import EngineIsUp, ToApi
from sluiceway.messages.to_child import Drain, PeerDown, PeerUp, Role, Stop
from sluiceway.messages.to_engine import ToEngine
from sluiceway.messages.to_supervisor import Ready
from sluiceway.messages.to_tokenizer import (
    AuditQuery,
    Cancel,
    EngineAudit,
    EngineUp,
    FromApi,
    FromEngine,
    Park,
    Pause,
    Resume,
    StepOut,
    Tokenize,
)
from sluiceway.procs.addresses import Addresses
from sluiceway.procs.loops import beat, run_until_first
from sluiceway.procs.translator import Encoded, Translator
from sluiceway.text.tokenizer import Tokenizer
from sluiceway.types import TokenId
from sluiceway.wire.control import AsyncControlClient
from sluiceway.wire.endpoint import AsyncInlet, Outlet

_INLINE_CHARS = 4096
"""Up to here encoding costs about a millisecond, less than the way to a thread and back under load."""

_ENCODING_THREADS = 2

_CONNECT_POLL_S = 0.005


async def run_tokenizer(context: zmq.Context[Any], addresses: Addresses, tokenizer: Tokenizer) -> None:
    """Serve until told to stop. Raises whatever breaks the loop."""
    to_api: Outlet[ToApi] = Outlet(context, addresses.tokenizer_to_api, bind=False)
    to_engine: Outlet[ToEngine] = Outlet(context, addresses.tokenizer_to_engine, bind=True)
    from_api: AsyncInlet[FromApi] = AsyncInlet(context, addresses.api_to_tokenizer, Decoder(FromApi), bind=False)
    from_engine: AsyncInlet[FromEngine] = AsyncInlet(
        context, addresses.engine_to_tokenizer, Decoder(FromEngine), bind=True
    )
    control = AsyncControlClient(context, addresses.control, Role.TOKENIZER)
    executor = ThreadPoolExecutor(_ENCODING_THREADS, thread_name_prefix="encode")
    translator = Translator(
        tokenizer, to_api=to_api.push, to_engine=to_engine.push, encode_later=_EncodeBesideTheLoop(executor)
    )
    try:
        await run_until_first(
            _read_api(from_api, translator),
            _read_engine(from_engine, translator, to_api, to_engine),
            _obey(control, translator),
            beat(control),
        )
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for end in (to_api, to_engine, from_api, from_engine, control):
            end.close()


class _EncodeBesideTheLoop:
    """Encodes short prompts at once and long ones in a thread, so that a long one delays nobody's next token."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    def __call__(
        self, n_chars: int, encode: Callable[[], list[list[TokenId]]], done: Callable[[Encoded], None]
    ) -> None:
        if n_chars <= _INLINE_CHARS:
            done(_outcome_of(encode))
            return
        future = self._executor.submit(_outcome_of, encode)
        future.add_done_callback(lambda finished: self._hand_over(finished, done))

    def _hand_over(self, finished: Future[Encoded], done: Callable[[Encoded], None]) -> None:
        if not finished.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(done, finished.result())


def _outcome_of(encode: Callable[[], list[list[TokenId]]]) -> Encoded:
    try:
        return encode()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the tokenizer library is not an Exception
        return error


async def _read_api(inlet: AsyncInlet[FromApi], translator: Translator) -> None:
    while True:
        match message := await inlet.take():
            case Tokenize():
                translator.tokenize(message)
            case Cancel():
                translator.cancel(message)
            case Pause() | Park() | Resume():
                translator.hold(message)
            case AuditQuery():
                translator.audit(message)
            case _:
                assert_never(message)


async def _read_engine(
    inlet: AsyncInlet[FromEngine], translator: Translator, to_api: Outlet[ToApi], to_engine: Outlet[ToEngine]
) -> None:
    while True:
        match message := await inlet.take():
            case StepOut():
                translator.step_out(message)
            case EngineAudit():
                translator.engine_audit(message)
            case EngineUp(facts):
                while not to_engine.has_peer():  # noqa: ASYNC110 - ZeroMQ tells nobody when a pipe has connected
                    await asyncio.sleep(_CONNECT_POLL_S)
                translator.max_sequence_tokens = facts.max_sequence_tokens
                to_api.push(EngineIsUp(facts))
            case _:
                assert_never(message)


async def _obey(control: AsyncControlClient, translator: Translator) -> None:
    control.report(Ready({"vocab_size": translator.vocab_size}))
    while True:
        match order := await control.take():
            case PeerDown(Role.ENGINE, hung=False):
                translator.engine_down()
            case PeerDown(Role.API, hung=False):
                translator.api_down()
            case PeerDown() | PeerUp() | Drain():
                pass
            case Stop():
                return
            case _:
                assert_never(order)
