"""Turns prompts into tokens, in the tokenizer process, without blocking the event loop.

A chat becomes text first, by the model's own template, in a child process (`tokenizer.rendering`). A short text is
encoded in the event loop, a long one in a thread. A prompt that cannot fit into a sequence is refused as early as
possible: by the number of messages, by the length of their contents, by the length of the rendered text, and by the
number of tokens, before a list is made of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, NoReturn, TypeAlias

import msgspec

from sluiceway.errors import RequestError, invalid
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from sluiceway.refusals import prompt_too_long
from sluiceway.tokenizer.rendering import ChatRenderer
from sluiceway.tokenizer.text.tokenizer import Tokenizer, TooManyTokens
from sluiceway.types import TokenId

Encoded: TypeAlias = list[Sequence[TokenId]] | BaseException
"""The tokens of each prompt, or what encoding raised."""

_INLINE_CHARS = 4096
"""Encoding a shorter text takes a few milliseconds, usually less than a switch to a thread and back under load."""

_CALL_CHARS = 64
"""The cost of one call of the library, expressed in characters: many short prompts cost as much as a long one."""

_BATCH_CHARS = 64 * 1024
"""How much of one request a thread encodes before it serves other requests. A prompt is never split."""

_HUGE_CHARS = 256 * 1024
"""A longer prompt may take seconds. A separate thread encodes such prompts, so that others do not wait for them."""


class _EncodeJob(NamedTuple):
    """A prompt that is ready to be encoded. The encoder of the library releases the interpreter lock."""

    n_chars: int
    encode: Callable[[], Sequence[TokenId]]


class PromptEncoder:
    """Encodes the prompts of requests. Belongs to the event loop in which it is made.

    `max_sequence_tokens` is set when the engine has reported it; until then no prompt is too long. `renderer` is None
    if the tokenizer's chat format is not a template.
    """

    def __init__(self, tokenizer: Tokenizer, renderer: ChatRenderer | None) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._thread_for_huge = ThreadPoolExecutor(1, thread_name_prefix="encode-huge")
        self._thread_for_counting = ThreadPoolExecutor(1, thread_name_prefix="count-bytes")
        self._tasks: set[asyncio.Task[list[Sequence[TokenId]]]] = set()
        self.max_sequence_tokens: int | None = None

    def encode(self, prompts: Sequence[Prompt], done: Callable[[Encoded], None]) -> Callable[[], object]:
        """Encode in the background, then call `done` in the event loop. The returned function cancels the work."""

        def finished(task: asyncio.Task[list[Sequence[TokenId]]]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                done(task.exception() or task.result())

        task = self._loop.create_task(self._encode_all(prompts))
        self._tasks.add(task)
        task.add_done_callback(finished)
        return task.cancel

    def close(self) -> None:
        """Cancel all work. A thread that is encoding finishes its batch."""
        for task in self._tasks:
            task.cancel()
        for thread in (self._thread, self._thread_for_huge, self._thread_for_counting):
            thread.shutdown(wait=False, cancel_futures=True)

    async def _encode_all(self, prompts: Sequence[Prompt]) -> list[Sequence[TokenId]]:
        jobs = [await self._job(prompt) for prompt in prompts]
        encoded: list[Sequence[TokenId]] = []
        if sum(job.n_chars for job in jobs) <= _INLINE_CHARS:
            return [job.encode() for job in jobs]
        for batch in _batches(jobs):
            thread = self._thread_for_huge if batch[0].n_chars > _HUGE_CHARS else self._thread
            encoded += await self._loop.run_in_executor(thread, partial(_encode_batch, batch))
        return encoded

    async def _job(self, prompt: Prompt) -> _EncodeJob:
        match prompt:
            case TokenPrompt(token_ids):
                self._require_room_for(len(token_ids))
                return _EncodeJob(0, lambda: token_ids)
            case TextPrompt(text):
                return await self._text_job(text, add_special_tokens=True)
            case ChatPrompt(messages):
                return await self._text_job(await self._rendered(messages), add_special_tokens=False)

    async def _text_job(self, text: str, *, add_special_tokens: bool) -> _EncodeJob:
        await self._require_room_for_text(text)
        return _EncodeJob(len(text) + _CALL_CHARS, lambda: self._encode(text, add_special_tokens))

    def _encode(self, text: str, add_special_tokens: bool) -> list[TokenId]:
        max_tokens = None if self.max_sequence_tokens is None else self.max_sequence_tokens - 1
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)
        except TooManyTokens as error:
            self._refuse_as_too_long(f"{error.n_tokens}")

    async def _rendered(self, messages: tuple[ChatMessage, ...]) -> str:
        """Render the chat as text. Each message has at least one token, whatever the template makes of it."""
        if not messages:
            raise invalid("A chat needs at least one message.", "messages")
        self._require_room_for(len(messages))
        await self._require_room_for_text("".join(message.content for message in messages))
        if self._renderer is not None:
            return await self._renderer.render(messages)
        chat_format = self._tokenizer.chat_format
        if not callable(chat_format):
            raise invalid(
                "The model has no chat template; send a plain prompt to the completions endpoint.",
                "messages",
                code="no_chat_template",
            )
        return chat_format([msgspec.to_builtins(message) for message in messages])

    async def _require_room_for_text(self, text: str) -> None:
        """Refuse a text that is too long. The bytes of a long text are counted in a thread."""
        if self.max_sequence_tokens is None:
            return
        min_tokens_of = self._tokenizer.length_bound.min_tokens_of
        if len(text) <= _BATCH_CHARS:
            at_least = min_tokens_of(text)
        else:
            at_least = await self._loop.run_in_executor(self._thread_for_counting, min_tokens_of, text)
        self._require_room_for(at_least)

    def _require_room_for(self, at_least: int) -> None:
        """Raise `RequestError` if a prompt of at least this many tokens cannot fit.

        Token ids are checked too: a million of them would block the loop of the engine.
        """
        if self.max_sequence_tokens is not None and at_least >= self.max_sequence_tokens:
            self._refuse_as_too_long(f"at least {at_least}")

    def _refuse_as_too_long(self, n_tokens: str) -> NoReturn:
        assert self.max_sequence_tokens is not None
        raise RequestError(prompt_too_long(n_tokens, self.max_sequence_tokens))


def _batches(jobs: Iterable[_EncodeJob]) -> Iterator[list[_EncodeJob]]:
    """Group consecutive jobs, up to `_BATCH_CHARS`. A longer job is a batch of its own."""
    batch: list[_EncodeJob] = []
    n_chars = 0
    for job in jobs:
        if batch and n_chars + job.n_chars > _BATCH_CHARS:
            yield batch
            batch, n_chars = [], 0
        batch.append(job)
        n_chars += job.n_chars
    yield batch


def _encode_batch(batch: Iterable[_EncodeJob]) -> list[Sequence[TokenId]]:
    return [job.encode() for job in batch]
