"""Renders chats by a model's template, in child processes.

A template may loop for ever or make gigabytes out of a letter, for every chat or for some. So each rendering has a time
and a memory, and what does not keep to them is killed, with its child.
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
    WorkerDied,
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
    memory_bytes=512 << 20,  # for the messages of a request as large as requests may be, and for their text
    result_bytes=256 << 20,  # the memory bounds it
    n_children=2,
    max_waiting=100_000,  # the hub bounds the requests, and `_WAIT_S` their time
    large_bytes=64 << 10,
    nice=0,  # an answer waits for it
)

_WAIT_S = 2 * LIMITS.deadline_s
"""How long a chat waits for those before it and for its own rendering."""

_FAILS = "The model's chat template does not render these messages"


class ChatRenderer:
    """Renders by one template. Belongs to the loop in which it is used; close it."""

    def __init__(self, template: TemplateSource) -> None:
        self._pool = WorkerPool("sluiceway.tokenizer.text.rendering:build", msgspec.msgpack.encode(template), LIMITS)

    async def check(self) -> None:
        """Raises `ModelConfigError` for a template that cannot be compiled. Logs that another fails on a greeting."""
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
        """The chat as text. `RequestError` where the template refuses it, fails, or takes too long.

        Cancelling is safe: a waiting chat is dropped, and a chat that is being rendered runs on within its deadline.
        """
        job = msgspec.msgpack.encode(messages)
        try:
            async with asyncio.timeout(_WAIT_S):
                result = _rendering(await self._run(job))
        except WorkerTimeout:
            message = f"{_FAILS} within {LIMITS.deadline_s:g} seconds."
            raise invalid(message, "messages", code="template_timeout") from None
        except (WorkerMemoryError, WorkerResultError):
            raise invalid(f"{_FAILS} in the memory that it may have.", "messages") from None
        except (WorkerBusy, TimeoutError):
            raise RequestError(OVERLOADED) from None  # chats before this one took their time
        if isinstance(result, Refused):
            raise invalid(result.message, "messages")
        return result.text

    async def close(self) -> None:
        """End the children. What is being rendered is given up."""
        await self._pool.close()

    async def _run(self, job: bytes) -> bytes:
        try:
            return await self._pool.run(job)
        except WorkerDied:
            return await self._pool.run(job)  # once more: perhaps it was not the job over which it died


def _rendering(result: bytes) -> Rendering:
    return msgspec.msgpack.decode(result, type=Rendering)
