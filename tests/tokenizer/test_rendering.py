"""Rendering in child processes: a bad template harms its own chats and no others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest
from structlog.testing import capture_logs

from sluiceway.errors import ConfigError, RequestError
from sluiceway.ipc.messages.to_tokenizer import ChatMessage
from sluiceway.runtime.worker import WorkerDied, WorkerFault, WorkerPool
from sluiceway.tokenizer import rendering
from sluiceway.tokenizer.rendering import ChatRenderer, rendering_pool
from sluiceway.tokenizer.text.tokenizer import TemplateSource

LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ON_REQUEST = "{% if messages[0].content == 'loop' %}" + LOOP + "{% endif %}{{ messages[0].content }}"


@contextlib.asynccontextmanager
async def renderer_of(source: str) -> AsyncIterator[ChatRenderer]:
    renderer = ChatRenderer(rendering_pool(TemplateSource(source, {})))
    try:
        yield renderer
    finally:
        await renderer.close()


def chat(*contents: str) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(role="user", content=content) for content in contents)


async def refusal_of(renderer: ChatRenderer, *contents: str) -> tuple[int, str, str | None]:
    with pytest.raises(RequestError) as caught:
        await renderer.render(chat(*contents))
    refusal = caught.value.refusal
    return refusal.status, refusal.code, refusal.param


@pytest.fixture(autouse=True)
def long_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give chats enough time on a busy machine."""
    monkeypatch.setattr(rendering, "LIMITS", msgspec.structs.replace(rendering.LIMITS, deadline_s=500.0))
    monkeypatch.setattr(rendering, "WAIT_S", 500.0)


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch, long_deadline: None) -> None:
    """Give a rendering four seconds: enough for each that ends, and a short wait for endless loops."""
    monkeypatch.setattr(rendering, "LIMITS", msgspec.structs.replace(rendering.LIMITS, deadline_s=4.0))


async def test_a_chat_becomes_text() -> None:
    """Also many at the same time, long ones and short ones."""
    async with renderer_of("{{ messages[0].content }}") as renderer:
        assert await renderer.render(chat("hi")) == "hi"
        contents = [str(n) * (1 if n % 2 else 80_000) for n in range(8)]
        assert await asyncio.gather(*(renderer.render(chat(content)) for content in contents)) == contents


async def test_a_refusal_of_the_template_is_the_clients() -> None:
    async with renderer_of("{{ raise_exception('no') }}") as renderer:
        assert await refusal_of(renderer, "x") == (400, "invalid_value", "messages")


async def test_a_chat_that_is_not_rendered_in_time_is_refused(short_deadline: None) -> None:
    """Other chats are rendered meanwhile and afterwards."""
    async with renderer_of(ON_REQUEST) as renderer:
        looping = asyncio.ensure_future(refusal_of(renderer, "loop"))
        assert await renderer.render(chat("meanwhile")) == "meanwhile"
        assert await looping == (400, "template_timeout", "messages")
        assert await renderer.render(chat("after")) == "after"


@pytest.mark.parametrize(
    ("limit", "n_bytes", "source"),
    [("memory_bytes", 16 << 20, "{{ 'a' * 100000000 }}"), ("result_bytes", 8, "{{ 'a' * 100 }}")],
)
async def test_a_chat_whose_text_is_too_large_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, n_bytes: int, source: str
) -> None:
    """By the limit of memory in the child, or by the limit of the result."""
    monkeypatch.setattr(rendering, "LIMITS", msgspec.structs.replace(rendering.LIMITS, **{limit: n_bytes}))
    async with renderer_of(source) as renderer:
        assert await refusal_of(renderer, "x") == (400, "invalid_value", "messages")


async def test_a_chat_that_waits_for_others_for_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 503, since the chat is not the cause."""
    monkeypatch.setattr(rendering, "WAIT_S", 0.0)
    async with renderer_of("x") as renderer:
        assert await refusal_of(renderer, "x") == (503, "overloaded", None)


async def test_a_chat_is_refused_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "LIMITS", msgspec.structs.replace(rendering.LIMITS, max_waiting=0))
    async with renderer_of("x") as renderer:
        assert await refusal_of(renderer, "x") == (503, "overloaded", None)


async def test_a_cancelled_chat_is_dropped(short_deadline: None) -> None:
    async with renderer_of(ON_REQUEST) as renderer:
        tasks = [asyncio.ensure_future(renderer.render(chat("loop"))) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        assert await renderer.render(chat("next")) == "next"


async def test_chat_fails_when_both_its_children_die() -> None:
    """A child that dies was probably killed from outside, so each chat may use two. The next chat gets a new one."""
    pool = rendering_pool(TemplateSource(ON_REQUEST, {}))
    renderer = ChatRenderer(pool)
    looping = asyncio.ensure_future(renderer.render(chat("loop")))
    while not looping.done():
        for pid in pool.pids:
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0)
    with pytest.raises(WorkerDied):
        await looping
    assert await renderer.render(chat("hi")) == "hi"
    await renderer.close()


@pytest.mark.parametrize("source", ["{% for %}", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"])
async def test_a_template_that_does_not_compile_fails_the_check(source: str) -> None:
    """The error says why in one line. A client that asks nevertheless is refused."""
    async with renderer_of(source) as renderer:
        with pytest.raises(ConfigError, match="^chat_template: is not valid: [^\n]*$"):
            await renderer.check()
        assert await refusal_of(renderer, "x") == (400, "invalid_value", "messages")


async def test_a_template_that_takes_too_long_to_compile_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jinja computes constants while it compiles, so compiling can hang."""
    monkeypatch.setattr(rendering, "LIMITS", msgspec.structs.replace(rendering.LIMITS, deadline_s=0.01))
    async with renderer_of("{% if true %}x{% endif %}" * 20_000) as renderer:
        with pytest.raises(ConfigError, match="^chat_template: is not compiled within 0.01 seconds$"):
            await renderer.check()


async def test_a_check_fails_when_no_child_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:

    async def fail(self: object, payload: bytes) -> bytes:
        raise WorkerFault("no such module")

    monkeypatch.setattr(WorkerPool, "run", fail)
    async with renderer_of("x") as renderer:
        with pytest.raises(ConfigError, match="^chat_template: cannot be compiled: no such module$"):
            await renderer.check()


@pytest.mark.parametrize(
    ("source", "reason"),
    [(LOOP, "within 4 seconds"), ("{{ raise_exception('no') }}", ": no."), ("{{ 'a' * 2000000000 }}", "MemoryError")],
)
async def test_a_template_that_fails_on_a_greeting_passes_the_check_with_a_warning(
    short_deadline: None, source: str, reason: str
) -> None:
    """The server can do other things, and a template may refuse some chats."""
    async with renderer_of(source) as renderer:
        with capture_logs() as lines:
            await renderer.check()
    [line] = lines
    assert line["event"] == "the chat template fails on a small chat" and reason in str(line["reason"])


async def test_a_template_that_renders_passes_the_check_without_a_warning() -> None:
    async with renderer_of("{{ messages[0].content }}") as renderer:
        with capture_logs() as lines:
            await renderer.check()
    assert lines == []
