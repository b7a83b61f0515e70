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


class WatchedTokenizer(ByteTokenizer):
    """Records what it encodes in which thread. Texts that begin with `wait` wait for the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        self.has_begun.set()
        self.calls.append((text[:8], threading.current_thread().name.rpartition("_")[0]))
        if text.startswith("wait"):
            self.may_go_on.wait()
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)


class ChatlessTokenizer(WatchedTokenizer):
    chat_format: ChatFormat | None = None  # type: ignore[assignment]


class FakeRenderer:
    """Renders when the test allows it."""

    def __init__(self, text: str | Exception) -> None:
        self.text = text
        self.asked: list[tuple[ChatMessage, ...]] = []
        self.was_asked, self.was_cancelled, self.may_go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def render(self, messages: tuple[ChatMessage, ...]) -> str:
        self.asked.append(messages)
        self.was_asked.set()
        try:
            await self.may_go_on.wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


class Bench:
    """A prompt encoder with a limit of 100 tokens, and its tokenizer and renderer."""

    def __init__(self, tokenizer: WatchedTokenizer, renderer: FakeRenderer | None = None) -> None:
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
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(WatchedTokenizer())
    yield bench
    bench.tokenizer.may_go_on.set()
    bench.encoder.close()


async def test_each_kind_of_prompt_becomes_tokens(bench: Bench) -> None:
    """In the order of the request. Text is a plain prompt, and a chat gets no further special tokens."""
    assert await bench.encoded(TextPrompt("ab"), TokenPrompt((7, 8)), chat("x")) == [
        [BOS_ID, *b"ab"],
        (7, 8),
        list(b"u: x\nassistant: "),
    ]
    assert await bench.encoded() == []


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
    bench: Bench, prompt: Prompt, n_tokens: str
) -> None:
    """By its length, by the number of its messages, or by the length of the rendered text."""
    code, message = await bench.refusal_of(TextPrompt("ok"), prompt)
    assert code == "context_length_exceeded"
    assert f"{n_tokens} tokens" in message and "maximum context length is 100 tokens" in message
    assert bench.tokenizer.calls == []


async def test_bytes_of_a_long_text_are_counted_in_a_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes of a short text are counted in the event loop."""
    counting: list[str] = []

    class Watched(LengthBound, frozen=True):
        def min_tokens_of(self, text: str) -> int:
            counting.append(threading.current_thread().name.rpartition("_")[0])
            return len(text)

    monkeypatch.setattr(bench.tokenizer, "length_bound", Watched())
    for prompt in (TextPrompt("x" * 100), TextPrompt("x" * 100_000), chat("y" * 100_000)):
        assert (await bench.refusal_of(prompt))[0] == "context_length_exceeded"
    assert counting == ["", "count-bytes", "count-bytes"]


async def test_a_prompt_that_fits_is_not_refused(bench: Bench) -> None:
    """One token must be left for the answer."""
    [ids] = await bench.encoded(TextPrompt("x" * 98))
    assert len(ids) == 99
    bench.encoder.max_sequence_tokens = None
    [ids] = await bench.encoded(TextPrompt("x" * 5000))
    assert len(ids) == 5001


async def test_a_prompt_is_refused_by_its_tokens_when_there_is_no_length_bound(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the number of tokens."""
    monkeypatch.setattr(bench.tokenizer, "length_bound", LengthBound())
    assert await bench.refusal_of(TextPrompt("x" * 99)) == (
        "context_length_exceeded",
        "This model's maximum context length is 100 tokens on this server. The prompt is too long: it has 100 tokens, "
        "and at least one token must be left for the answer.",
    )


async def test_a_chat_without_messages_is_refused(bench: Bench) -> None:
    assert await bench.refusal_of(chat()) == ("invalid_value", "A chat needs at least one message.")


async def test_a_chat_is_refused_when_there_is_no_chat_format() -> None:
    """The error names the endpoint for plain prompts."""
    bench = Bench(ChatlessTokenizer())
    code, message = await bench.refusal_of(chat("x"))
    assert code == "no_chat_template" and "completions" in message
    bench.encoder.close()


async def test_short_prompts_are_encoded_in_the_loop_and_long_ones_in_threads(bench: Bench) -> None:
    """Many short prompts count as a long one. Huge ones have a separate thread."""
    bench.encoder.max_sequence_tokens = 10**7
    await bench.encoded(TextPrompt("s" * 4000))
    await bench.encoded(TextPrompt("l" * 5000))
    await bench.encoded(TextPrompt("h" * 300_000))
    await bench.encoded(*[TextPrompt("m")] * 100)
    threads = dict(bench.tokenizer.calls)
    assert [threads[text] for text in ("s" * 8, "l" * 8, "h" * 8, "m")] == ["", "encode", "encode-huge", "encode"]
    assert len(bench.tokenizer.calls) == 103


async def test_a_long_prompt_does_not_wait_for_a_huge_one(bench: Bench) -> None:
    """A short one waits for neither."""
    bench.encoder.max_sequence_tokens = 10**7
    huge = asyncio.ensure_future(bench.encoded(TextPrompt("wait" + "h" * 300_000)))
    assert len((await bench.encoded(TextPrompt("l" * 5000)))[0]) == 5001
    waiting = asyncio.ensure_future(bench.encoded(TextPrompt("wait" + "l" * 5000)))
    assert await bench.encoded(TextPrompt("s")) == [[BOS_ID, *b"s"]]
    bench.tokenizer.may_go_on.set()
    assert len((await huge)[0]) == 300_005 and len((await waiting)[0]) == 5005


async def test_other_requests_are_served_between_the_prompts_of_a_request(bench: Bench) -> None:
    """A thread encodes up to 64 KiB of one request before it serves others."""
    bench.encoder.max_sequence_tokens = 10**7
    many = asyncio.ensure_future(bench.encoded(TextPrompt("wait" + "a" * 50_000), TextPrompt("b" * 50_000)))
    await asyncio.to_thread(bench.tokenizer.has_begun.wait)
    other = asyncio.ensure_future(bench.encoded(TextPrompt("c" * 5000)))
    for _ in range(3):
        await asyncio.sleep(0)  # until it is in the thread's queue
    bench.tokenizer.may_go_on.set()
    assert [len(ids) for ids in await many] == [50_005, 50_001] and await other
    assert [text for text, _ in bench.tokenizer.calls] == ["waitaaaa", "c" * 8, "b" * 8]


async def test_cancelled_work_is_not_done() -> None:
    """The prompt is neither rendered nor encoded, and there is no outcome."""
    renderer = FakeRenderer("x")
    bench = Bench(WatchedTokenizer(), renderer)
    outcomes: list[Encoded] = []
    drop = bench.encoder.encode((chat("x"),), outcomes.append)
    await renderer.was_asked.wait()
    drop()
    await renderer.was_cancelled.wait()
    renderer.may_go_on.set()
    assert await bench.encoded(TextPrompt("s"))
    assert outcomes == [] and [text for text, _ in bench.tokenizer.calls] == ["s"]
    bench.encoder.close()


async def test_chats_are_rendered_by_the_renderer_if_there_is_one() -> None:
    """Other prompts are encoded meanwhile."""
    renderer = FakeRenderer("rendered")
    bench = Bench(WatchedTokenizer(), renderer)
    waiting = asyncio.ensure_future(bench.encoded(chat("x")))
    assert await bench.encoded(TextPrompt("s"))
    renderer.may_go_on.set()
    assert await waiting == [list(b"rendered")]
    assert renderer.asked == [chat("x").messages]
    renderer.text = RuntimeError("secret")
    with pytest.raises(RuntimeError):
        await bench.encoded(chat("x"))
    renderer.text = "x" * 200
    assert (await bench.refusal_of(chat("x")))[0] == "context_length_exceeded"
    bench.encoder.close()


async def test_closing_cancels_all_work(bench: Bench) -> None:
    """The result of a running thread is dropped."""
    outcomes: list[Any] = []
    bench.encoder.max_sequence_tokens = None
    bench.encoder.encode((TextPrompt("wait" + "l" * 5000),), outcomes.append)
    await asyncio.to_thread(bench.tokenizer.has_begun.wait)
    bench.encoder.close()
    bench.tokenizer.may_go_on.set()
    await asyncio.sleep(0)
    assert outcomes == []
