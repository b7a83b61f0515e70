"""The tokenizer process: the event loop and the sockets around a `Translator`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, assert_never

import structlog
import zmq

from sluiceway.ipc.messages.codec import Decoder
from sluiceway.ipc.messages.to_api import EngineIsUp, ToApi
from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, ProcessFigures, Role, Stop
from sluiceway.ipc.messages.to_engine import SetFlow, ToEngine
from sluiceway.ipc.messages.to_supervisor import Ready
from sluiceway.ipc.messages.to_tokenizer import (
    AuditQuery,
    Cancel,
    EngineAudit,
    EngineUp,
    Forget,
    FromApi,
    FromEngine,
    StepOut,
    Tokenize,
)
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import AsyncControlClient
from sluiceway.ipc.pipes.endpoint import AsyncInlet, Outlet
from sluiceway.lengths import LengthBound
from sluiceway.obs.log import log_fault
from sluiceway.runtime.loops import beat, run_until_first
from sluiceway.tokenizer.prompts import PromptEncoder
from sluiceway.tokenizer.rendering import ChatRenderer, rendering_pool
from sluiceway.tokenizer.text.tokenizer import TemplateSource, Tokenizer
from sluiceway.tokenizer.translator import Translator

_CONNECT_POLL_S = 0.005

_LOG = structlog.get_logger("tokenizer")


async def run_tokenizer(context: zmq.Context[Any], addresses: Addresses, tokenizer: Tokenizer) -> None:
    """Serve until the supervisor stops the process. Raises `ModelConfigError` for a wrong chat template.

    An exception in the handling of one message is logged, and the next message is handled.
    """
    template = tokenizer.chat_format
    renderer = ChatRenderer(rendering_pool(template)) if isinstance(template, TemplateSource) else None
    try:
        if renderer is not None:
            await renderer.check()
        await _serve(context, addresses, tokenizer, renderer)
    finally:
        if renderer is not None:
            await renderer.close()


async def _serve(
    context: zmq.Context[Any], addresses: Addresses, tokenizer: Tokenizer, renderer: ChatRenderer | None
) -> None:
    to_api: Outlet[ToApi] = Outlet(context, addresses.tokenizer_to_api, bind=False)
    to_engine: Outlet[ToEngine] = Outlet(context, addresses.tokenizer_to_engine, bind=True)
    from_api: AsyncInlet[FromApi] = AsyncInlet(context, addresses.api_to_tokenizer, Decoder(FromApi), bind=False)
    from_engine: AsyncInlet[FromEngine] = AsyncInlet(
        context, addresses.engine_to_tokenizer, Decoder(FromEngine), bind=True
    )
    control = AsyncControlClient(context, addresses.control, Role.TOKENIZER)
    prompts = PromptEncoder(tokenizer, renderer)
    translator = Translator(tokenizer, to_api=to_api.push, to_engine=to_engine.push, encode=prompts.encode)
    try:
        await run_until_first(
            _read_api(from_api, translator),
            _read_engine(from_engine, translator, prompts, tokenizer.length_bound, to_api, to_engine),
            _obey(control, translator),
            beat(control),
        )
    finally:
        prompts.close()
        for end in (to_api, to_engine, from_api, from_engine, control):
            end.close()


@contextlib.contextmanager
def _log_faults(message: object) -> Iterator[None]:
    """Log an exception in the handling of one message, so that other requests go on."""
    try:
        yield
    except Exception as error:
        log_fault(_LOG, "a message could not be handled", error, message=type(message).__name__)


async def _read_api(inlet: AsyncInlet[FromApi], translator: Translator) -> None:
    while True:
        message = await inlet.take()
        with _log_faults(message):
            match message:
                case Tokenize():
                    translator.tokenize(message)
                case Cancel():
                    translator.cancel(message)
                case Forget():
                    translator.forget(message)
                case SetFlow():
                    translator.set_flow(message)
                case AuditQuery():
                    translator.audit(message)
                case _:
                    assert_never(message)


async def _read_engine(
    inlet: AsyncInlet[FromEngine],
    translator: Translator,
    prompts: PromptEncoder,
    length_bound: LengthBound,
    to_api: Outlet[ToApi],
    to_engine: Outlet[ToEngine],
) -> None:
    while True:
        message = await inlet.take()
        with _log_faults(message):
            match message:
                case StepOut():
                    translator.step_out(message)
                case EngineAudit():
                    translator.engine_audit(message)
                case EngineUp(facts):
                    while not to_engine.has_peer():  # noqa: ASYNC110 - ZeroMQ has no event for a pipe that has connected
                        await asyncio.sleep(_CONNECT_POLL_S)
                    prompts.max_sequence_tokens = facts.max_sequence_tokens
                    to_api.push(EngineIsUp(facts, length_bound))
                case _:
                    assert_never(message)


async def _obey(control: AsyncControlClient, translator: Translator) -> None:
    control.report(Ready({"vocab_size": translator.vocab_size}))
    while True:
        command = await control.take()
        with _log_faults(command):
            match command:
                case PeerDown(Role.ENGINE, hung=False):
                    translator.engine_down()
                case PeerDown(Role.API, hung=False):
                    translator.api_down()
                case PeerDown() | PeerUp() | ProcessFigures() | Drain():
                    pass
                case Stop():
                    return
                case _:
                    assert_never(command)
