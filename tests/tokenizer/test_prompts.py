"""Encoding of prompts: which are refused early, and which wait for others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
import pytest_asyncio

from sluiceway.errors import RequestError
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokenPrompt
from sluiceway.lengths import LengthBound
from sluiceway.tokenizer.prompts import Encoded, PromptEncoder
from sluiceway.tokenizer.rendering import ChatRenderer
from sluiceway.tokenizer.text.byte_tokenizer import BOS_ID, ByteTokenizer
from sluiceway.tokenizer.text.tokenizer import ChatFormat
from sluiceway.types import TokenId

WAIT_S = 120.0


class RecordingTokenizer(ByteTokenizer):
    """Records what it encodes in which thread. Texts that begin with `wait` wait for the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.has_started, self.may_continue = threading.Event(), threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        self.has_started.set()
        self.calls.append((text[:8], threading.current_thread().name.rpartition("_")[0]))
        if text.startswith("wait"):
            self.may_continue.wait()
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)


class ChatlessTokenizer(RecordingTokenizer):
    chat_format: ChatFormat | None = None  # type: ignore[assignment]


class FakeRenderer:
    """Renders when the test allows it."""

    def __init__(self, text: str | Exception) -> None:
        self.text = text
        self.asked: list[tuple[ChatMessage, ...]] = []
        self.was_asked, self.was_cancelled, self.may_continue = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def render(self, messages: tuple[ChatMessage, ...]) -> str:
        self.asked.append(messages)
        self.was_asked.set()
        try:
            await self.may_continue.wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


class EncoderDriver:
    """A prompt encoder with a limit of 100 tokens, and its tokenizer and renderer."""

    def __init__(self, tokenizer: RecordingTokenizer, renderer: FakeRenderer | None = None) -> None:
        self.tokenizer, self.renderer = tokenizer, renderer
        self.encoder = PromptEncoder(tokenizer, cast(ChatRenderer | None, renderer))
        self.encoder.max_sequence_tokens = 100

    async def encoded(self, *prompts: Prompt) -> list[Sequence[TokenId]]:
        outcome: asyncio.Future[Encoded] = asyncio.get_running_loop().create_future()
        self.encoder.encode(prompts, outcome.set_result)
        result = await asyncio.wait_for(outcome, WAIT_S)
        if isinstance(result, BaseException):
            raise result
        return result

    async def refusal_of(self, *prompts: Prompt) -> tuple[str, str]:
        with pytest.raises(RequestError) as caught:
            await self.encoded(*prompts)
        return caught.value.refusal.code, caught.value.refusal.message


def chat(*contents: str) -> ChatPrompt:
    return ChatPrompt(tuple(ChatMessage(role="u", content=content) for content in contents))


@pytest_asyncio.fixture
async def driver() -> AsyncIterator[EncoderDriver]:
    driver = EncoderDriver(RecordingTokenizer())
    yield driver
    driver.tokenizer.may_continue.set()
    driver.encoder.close()


async def test_each_kind_of_prompt_becomes_tokens(driver: EncoderDriver) -> None:
    """In the order of the request. Text is a plain prompt, and a chat gets no further special tokens."""
    assert await driver.encoded(TextPrompt("ab"), TokenPrompt((7, 8)), chat("x")) == [
        [BOS_ID, *b"ab"],
        (7, 8),
        list(b"u: x\nassistant: "),
    ]
    assert await driver.encoded() == []


@pytest.mark.parametrize(
    ("prompt", "n_tokens"),
    [
        (TextPrompt("x" * 99), "at least 100"),
        (TokenPrompt((1,) * 100), "at least 100"),
        (chat("y" * 99), "at least 100"),
        (chat(*[""] * 100), "at least 100"),
        (chat(*[""] * 30), "at least 132"),
    ],
    ids=["text", "ids", "content", "messages", "rendered"],
)
async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    driver: EncoderDriver, prompt: Prompt, n_tokens: str
) -> None:
    """By its length, by the number of its messages, or by the length of the rendered text."""
    code, message = await driver.refusal_of(TextPrompt("ok"), prompt)
    assert code == "context_length_exceeded"
    assert f"{n_tokens} tokens" in message and "maximum context length is 100 tokens" in message
    assert driver.tokenizer.calls == []


async def test_bytes_of_a_long_text_are_counted_in_a_thread(
    driver: EncoderDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a short text are counted in the event loop."""
    counting: list[str] = []

    class RecordingBound(LengthBound, frozen=True):
        def min_tokens_of(self, text: str) -> int:
            counting.append(threading.current_thread().name.rpartition("_")[0])
            return len(text)

    monkeypatch.setattr(driver.tokenizer, "length_bound", RecordingBound())
    for prompt in (TextPrompt("x" * 100), TextPrompt("x" * 100_000), chat("y" * 100_000)):
        assert (await driver.refusal_of(prompt))[0] == "context_length_exceeded"
    assert counting == ["", "count-bytes", "count-bytes"]


async def test_a_prompt_that_fits_is_not_refused(driver: EncoderDriver) -> None:
    """One token must be left for the answer."""
    [ids] = await driver.encoded(TextPrompt("x" * 98))
    assert len(ids) == 99
    driver.encoder.max_sequence_tokens = None
    [ids] = await driver.encoded(TextPrompt("x" * 5000))
    assert len(ids) == 5001


async def test_a_prompt_is_refused_by_its_tokens_when_there_is_no_length_bound(
    driver: EncoderDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the number of tokens."""
    monkeypatch.setattr(driver.tokenizer, "length_bound", LengthBound())
    assert await driver.refusal_of(TextPrompt("x" * 99)) == (
        "context_length_exceeded",
        "This model's maximum context length is 100 tokens on this server. The prompt is too long: it has 100 tokens, "
        "and at least one token must be left for the answer.",
    )


async def test_a_chat_without_messages_is_refused(driver: EncoderDriver) -> None:
    assert await driver.refusal_of(chat()) == ("invalid_value", "A chat needs at least one message.")


async def test_a_chat_is_refused_when_there_is_no_chat_format() -> None:
    """The error names the endpoint for plain prompts."""
    driver = EncoderDriver(ChatlessTokenizer())
    code, message = await driver.refusal_of(chat("x"))
    assert code == "no_chat_template" and "completions" in message
    driver.encoder.close()


async def test_short_prompts_are_encoded_in_the_loop_and_long_ones_in_threads(driver: EncoderDriver) -> None:
    """Many short prompts count as a long one. Huge ones have a separate thread."""
    driver.encoder.max_sequence_tokens = 10**7
    await driver.encoded(TextPrompt("s" * 4000))
    await driver.encoded(TextPrompt("l" * 5000))
    await driver.encoded(TextPrompt("h" * 300_000))
    await driver.encoded(*[TextPrompt("m")] * 100)
    threads = dict(driver.tokenizer.calls)
    assert [threads[text] for text in ("s" * 8, "l" * 8, "h" * 8, "m")] == ["", "encode", "encode-huge", "encode"]
    assert len(driver.tokenizer.calls) == 103


async def test_a_long_prompt_does_not_wait_for_a_huge_one(driver: EncoderDriver) -> None:
    """A short one waits for neither."""
    driver.encoder.max_sequence_tokens = 10**7
    huge = asyncio.ensure_future(driver.encoded(TextPrompt("wait" + "h" * 300_000)))
    assert len((await driver.encoded(TextPrompt("l" * 5000)))[0]) == 5001
    waiting = asyncio.ensure_future(driver.encoded(TextPrompt("wait" + "l" * 5000)))
    assert await driver.encoded(TextPrompt("s")) == [[BOS_ID, *b"s"]]
    driver.tokenizer.may_continue.set()
    assert len((await huge)[0]) == 300_005 and len((await waiting)[0]) == 5005


async def test_other_requests_are_served_between_the_prompts_of_a_request(driver: EncoderDriver) -> None:
    """A thread encodes up to 64 KiB of one request before it serves others."""
    driver.encoder.max_sequence_tokens = 10**7
    many = asyncio.ensure_future(driver.encoded(TextPrompt("wait" + "a" * 50_000), TextPrompt("b" * 50_000)))
    await asyncio.to_thread(driver.tokenizer.has_started.wait)
    other = asyncio.ensure_future(driver.encoded(TextPrompt("c" * 5000)))
    for _ in range(3):
        await asyncio.sleep(0)  # until it is in the thread's queue
    driver.tokenizer.may_continue.set()
    assert [len(ids) for ids in await many] == [50_005, 50_001] and await other
    assert [text for text, _ in driver.tokenizer.calls] == ["waitaaaa", "c" * 8, "b" * 8]


async def test_cancelled_work_is_not_done() -> None:
    """The prompt is neither rendered nor encoded, and there is no outcome."""
    renderer = FakeRenderer("x")
    driver = EncoderDriver(RecordingTokenizer(), renderer)
    outcomes: list[Encoded] = []
    drop = driver.encoder.encode((chat("x"),), outcomes.append)
    await renderer.was_asked.wait()
    drop()
    await renderer.was_cancelled.wait()
    renderer.may_continue.set()
    assert await driver.encoded(TextPrompt("s"))
    assert outcomes == [] and [text for text, _ in driver.tokenizer.calls] == ["s"]
    driver.encoder.close()


async def test_chats_are_rendered_by_the_renderer_if_there_is_one() -> None:
    """Other prompts are encoded meanwhile."""
    renderer = FakeRenderer("rendered")
    driver = EncoderDriver(RecordingTokenizer(), renderer)
    waiting = asyncio.ensure_future(driver.encoded(chat("x")))
    assert await driver.encoded(TextPrompt("s"))
    renderer.may_continue.set()
    assert await waiting == [list(b"rendered")]
    assert renderer.asked == [chat("x").messages]
    renderer.text = RuntimeError("secret")
    with pytest.raises(RuntimeError):
        await driver.encoded(chat("x"))
    renderer.text = "x" * 200
    assert (await driver.refusal_of(chat("x")))[0] == "context_length_exceeded"
    driver.encoder.close()


async def test_closing_cancels_all_work(driver: EncoderDriver) -> None:
    """The result of a running thread is dropped."""
    outcomes: list[Any] = []
    driver.encoder.max_sequence_tokens = None
    driver.encoder.encode((TextPrompt("wait" + "l" * 5000),), outcomes.append)
    await asyncio.to_thread(driver.tokenizer.has_started.wait)
    driver.encoder.close()
    driver.tokenizer.may_continue.set()
    await asyncio.sleep(0)
    assert outcomes == []
