"""Renders chats with a model's template, in child processes.

A template may loop for ever, or make gigabytes out of one letter, for every chat or for some. So each rendering has
limits of time and memory, and a child that exceeds them is killed.
"""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from sluiceway.errors import ModelConfigError, RequestError, invalid
from sluiceway.ipc.messages.to_tokenizer import ChatMessage
from sluiceway.refusals import OVERLOADED
from sluiceway.runtime.worker import (
    WorkerBusy,
    WorkerError,
    WorkerLimits,
    WorkerMemoryError,
    WorkerPool,
    WorkerResultError,
    WorkerTimeout,
)
from sluiceway.tokenizer.text.rendering import Refused, Rendering
from sluiceway.tokenizer.text.tokenizer import TemplateSource

LIMITS = WorkerLimits(
    deadline_s=5.0,  # published templates take a millisecond for a hundred messages
    memory_bytes=512 << 20,  # enough for the largest request and its text
    result_bytes=256 << 20,  # already bounded by the memory
    n_children=2,
    max_waiting=100_000,  # the API process bounds the requests, `WAIT_S` their time
    large_bytes=64 << 10,
    nice=0,  # a client waits for it
    may_repeat=True,  # a child that dies was probably killed from outside
)

WAIT_S = 2 * LIMITS.deadline_s
"""The time that a chat has to wait for earlier ones and to be rendered."""

_FAILS = "The model's chat template does not render these messages"


def rendering_pool(template: TemplateSource) -> WorkerPool:
    """Make the child processes that render chats with a template."""
    return WorkerPool("sluiceway.tokenizer.text.rendering:build", msgspec.msgpack.encode(template), LIMITS)


class ChatRenderer:
    """Renders chats with one template. Belongs to the event loop in which it is used, and must be closed."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def check(self) -> None:
        """Raise `ModelConfigError` if the template cannot be compiled. If it fails on a greeting, log a warning."""
        try:
            result = _rendering(await self._pool.run(msgspec.msgpack.encode(())))
        except WorkerTimeout:
            raise ModelConfigError("chat_template", f"is not compiled within {LIMITS.deadline_s:g} seconds") from None
        except WorkerError as error:
            raise ModelConfigError("chat_template", f"cannot be compiled: {error}") from error
        if isinstance(result, Refused):
            raise ModelConfigError("chat_template", result.message)
        try:
            await self.render((ChatMessage(role="user", content="Hi"),))
        except RequestError as error:
            log = structlog.get_logger("tokenizer")
            log.warning("the chat template fails on a small chat", reason=error.refusal.message)

    async def render(self, messages: tuple[ChatMessage, ...]) -> str:
        """Render the chat as text. Raises `RequestError` if the template refuses it, fails, or takes too long.

        It may be cancelled: a waiting chat is dropped then, and a chat that is being rendered ends by its deadline.
        """
        job = msgspec.msgpack.encode(messages)
        try:
            async with asyncio.timeout(WAIT_S):
                result = _rendering(await self._pool.run(job))
        except WorkerTimeout:
            message = f"{_FAILS} within {LIMITS.deadline_s:g} seconds."
            raise invalid(message, "messages", code="template_timeout") from None
        except (WorkerMemoryError, WorkerResultError):
            raise invalid(f"{_FAILS} within its limit of memory.", "messages") from None
        except (WorkerBusy, TimeoutError):
            raise RequestError(OVERLOADED) from None  # earlier chats took too long
        if isinstance(result, Refused):
            raise invalid(result.message, "messages")
        return result.text

    async def close(self) -> None:
        """End the children. Chats that are being rendered are abandoned."""
        await self._pool.close()


def _rendering(result: bytes) -> Rendering:
    return msgspec.msgpack.decode(result, type=Rendering)
