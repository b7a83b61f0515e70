"""Prompts to tokens: what is refused before it costs anything, and what waits for whom."""

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
    """Notes what it encodes, and in which thread; waits over texts that begin with `wait`."""

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
    """Renders when it is told to."""

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
    """An encoder that can hold 100 tokens, and what it was given."""

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
    """In the order of the request: text as a plain prompt, ids as they are, a chat without further special tokens."""
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
    """By its length, by the number of its messages, or by the length of what they are rendered to."""
    code, message = await bench.refusal_of(TextPrompt("ok"), prompt)
    assert code == "context_length_exceeded"
    assert f"{n_tokens} tokens" in message and "maximum context length is 100 tokens" in message
    assert bench.tokenizer.calls == []


async def test_bytes_of_a_long_text_are_counted_beside_the_loop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a short one in it."""
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


async def test_a_prompt_is_refused_by_its_tokens_when_its_length_says_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No list is made of them. The error has their number."""
    monkeypatch.setattr(bench.tokenizer, "length_bound", LengthBound())
    assert await bench.refusal_of(TextPrompt("x" * 99)) == (
        "context_length_exceeded",
        "This model's maximum context length is 100 tokens on this server. The prompt is too long: it has 100 tokens, "
        "and at least one token must be left for the answer.",
    )


async def test_a_chat_without_messages_is_refused(bench: Bench) -> None:
    """No message, no chat."""
    assert await bench.refusal_of(chat()) == ("invalid_value", "A chat needs at least one message.")


async def test_a_chat_is_refused_and_the_way_out_named_when_there_is_no_chat_format() -> None:
    """A base model is asked by plain prompts."""
    bench = Bench(ChatlessTokenizer())
    code, message = await bench.refusal_of(chat("x"))
    assert code == "no_chat_template" and "completions" in message
    bench.encoder.close()


async def test_short_prompts_are_encoded_in_the_loop_and_long_ones_in_threads(bench: Bench) -> None:
    """Many short ones together are long; huge ones have a thread of their own."""
    bench.encoder.max_sequence_tokens = 10**7
    await bench.encoded(TextPrompt("s" * 4000))
    await bench.encoded(TextPrompt("l" * 5000))
    await bench.encoded(TextPrompt("h" * 300_000))
    await bench.encoded(*[TextPrompt("m")] * 100)
    threads = dict(bench.tokenizer.calls)
    assert [threads[text] for text in ("s" * 8, "l" * 8, "h" * 8, "m")] == ["", "encode", "encode-huge", "encode"]
    assert len(bench.tokenizer.calls) == 103


async def test_a_long_prompt_does_not_wait_for_a_huge_one(bench: Bench) -> None:
    """Nor a short one for either."""
    bench.encoder.max_sequence_tokens = 10**7
    huge = asyncio.ensure_future(bench.encoded(TextPrompt("wait" + "h" * 300_000)))
    assert len((await bench.encoded(TextPrompt("l" * 5000)))[0]) == 5001
    waiting = asyncio.ensure_future(bench.encoded(TextPrompt("wait" + "l" * 5000)))
    assert await bench.encoded(TextPrompt("s")) == [[BOS_ID, *b"s"]]
    bench.tokenizer.may_go_on.set()
    assert len((await huge)[0]) == 300_005 and len((await waiting)[0]) == 5005


async def test_others_have_their_turn_between_the_prompts_of_a_request(bench: Bench) -> None:
    """A thread takes up to 64 KiB of one request without a break."""
    bench.encoder.max_sequence_tokens = 10**7
    many = asyncio.ensure_future(bench.encoded(TextPrompt("wait" + "a" * 50_000), TextPrompt("b" * 50_000)))
    await asyncio.to_thread(bench.tokenizer.has_begun.wait)
    other = asyncio.ensure_future(bench.encoded(TextPrompt("c" * 5000)))
    for _ in range(3):
        await asyncio.sleep(0)  # until it is in the thread's queue
    bench.tokenizer.may_go_on.set()
    assert [len(ids) for ids in await many] == [50_005, 50_001] and await other
    assert [text for text, _ in bench.tokenizer.calls] == ["waitaaaa", "c" * 8, "b" * 8]


async def test_work_that_is_dropped_is_not_done() -> None:
    """Neither rendered nor encoded, and nobody is told."""
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


async def test_chats_are_rendered_by_the_renderer_where_there_is_one() -> None:
    """Others are encoded meanwhile."""
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


async def test_closing_drops_all_work(bench: Bench) -> None:
    """What a thread has begun finds nobody who waits for it."""
    outcomes: list[Any] = []
    bench.encoder.max_sequence_tokens = None
    bench.encoder.encode((TextPrompt("wait" + "l" * 5000),), outcomes.append)
    await asyncio.to_thread(bench.tokenizer.has_begun.wait)
    bench.encoder.close()
    bench.tokenizer.may_go_on.set()
    await asyncio.sleep(0)
    assert outcomes == []
