"""Streams and bodies: exact bytes once, the SDK's types for all, and no token late or lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from sluiceway.errors import InvariantError, Refusal
from sluiceway.ipc.messages.to_api import Delta, Finished
from sluiceway.ipc.messages.to_tokenizer import TextPrompt
from sluiceway.protocols.common.generation import Framer, GenerationRequest, TokenUsage
from sluiceway.protocols.common.pieces import PIECE_BYTES
from sluiceway.protocols.openai.framer import ChatFramer, CompletionFramer
from sluiceway.sse.decoder import EventDecoder
from sluiceway.types import FinishReason, SamplingParams
from support.told import told, told_text

USAGE = TokenUsage(prompt_tokens=5, completion_tokens=3, cached_tokens=4)
USAGE_FIELDS = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
REFUSAL = Refusal(status=500, code="engine_died", message="The engine died.")


def request(
    n_choices: int,
    max_tokens: int,
    *,
    include_usage: bool = False,
    return_token_ids: bool = False,
    tells_logprobs: bool = False,
) -> GenerationRequest:
    return GenerationRequest(
        model="m",
        prompts=(TextPrompt("hi"),),
        n=n_choices,
        sampling=SamplingParams(max_tokens=max_tokens, logprobs=0 if tells_logprobs else None),
        stop=(),
        stream=True,
        include_usage=include_usage,
        return_token_ids=return_token_ids,
    )


def chat(n_choices: int = 1, **options: bool) -> ChatFramer:
    return ChatFramer(request(n_choices, 16, **options), "id-1", 7)


def completion(n_choices: int = 1, max_tokens: int = 16, **options: bool) -> CompletionFramer:
    return CompletionFramer(request(n_choices, max_tokens, **options), "id-1", 7)


def delta(text: str, *token_ids: int) -> Delta:
    return Delta(1, text, token_ids)


def finished(reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(rid=1, reason=reason, completion_tokens=3)


def chunks(raw: bytes) -> list[dict[str, Any]]:
    """The chunks of a stream, without its end."""
    datas = [event.data for event in EventDecoder().feed(raw)]
    return [json.loads(data) for data in datas if data != "[DONE]"]


def choices(raw: bytes) -> list[dict[str, Any]]:
    return [choice for chunk in chunks(raw) for choice in chunk["choices"]]


def entries(choice: dict[str, Any]) -> list[str]:
    """The tokens that a choice tells of, in either shape."""
    logprobs = choice["logprobs"]
    return logprobs["tokens"] if "tokens" in logprobs else [entry["token"] for entry in logprobs["content"]]


def test_chat_stream_is_exact_when_written() -> None:
    """The whole of the format once, byte for byte."""
    framer = chat()
    head = 'data: {"id":"id-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,'
    assert framer.start(USAGE).decode() == (
        head + '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert framer.delta(0, delta('a"\n😀\u2028', 1)).decode() == (
        head + '"delta":{"content":"a\\"\\n😀\\u2028"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert framer.finish(0, finished()).decode() == (head + '"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n')
    assert framer.end(USAGE) == b"data: [DONE]\n\n"


def test_completion_stream_is_exact_when_written() -> None:
    """No first chunk without text, and the finish reason beside a text."""
    framer = completion()
    head = 'data: {"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,'
    assert framer.start(USAGE) == b""
    assert framer.delta(0, delta("a", 1)).decode() == (head + '"text":"a","logprobs":null,"finish_reason":null}]}\n\n')
    assert framer.finish(0, finished()).decode() == (head + '"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n')
    assert framer.end(USAGE) == b"data: [DONE]\n\n"


MAKERS: list[Callable[..., Framer]] = [chat, completion]


def test_chat_stream_tells_logprobs_with_their_text_when_asked() -> None:
    """Of what is held back with the next text; of what was cut, or has no text, with the finish. No empty lists."""
    framer = chat(tells_logprobs=True)
    one, half, cut, end = told(b"one", 0, 3), told(b"\xc3", 3, 4), told(b"\xa9STOP", 3, 8), told(b"", 8, None)
    raw = (
        framer.start(USAGE)
        + framer.delta(0, Delta(1, "one", (1,), (one,)))
        + framer.delta(0, Delta(1, "", (2,), (half,)))
    )
    raw += framer.delta(0, Delta(1, "", (3,), (cut,))) + framer.delta(0, Delta(1, "é", (4,), (end,)))
    told_choices = choices(raw + framer.finish(0, finished()))
    assert [choice["logprobs"] and entries(choice) for choice in told_choices] == [
        None,
        ["one"],
        ["\\xc3"],
        ["\\xa9STOP"],
    ]
    assert [choice["delta"].get("content") for choice in told_choices] == ["", "one", "é", None]
    assert told_choices[3]["logprobs"]["content"][0]["bytes"] == [0xA9]
    for chunk in chunks(raw):
        ChatCompletionChunk.model_validate(chunk)


def test_chat_chunk_has_null_when_no_token_is_out_with_its_text() -> None:
    """As where nobody asked."""
    framer = chat(tells_logprobs=True)
    raw = framer.delta(0, Delta(1, "a", (1,), (told(b"aS", 0, 2),))) + framer.finish(0, finished(FinishReason.LENGTH))
    first, last = choices(raw)
    assert first["logprobs"] is None and entries(last) == ["aS"]
    assert choices(chat(tells_logprobs=True).finish(0, finished()))[0]["logprobs"] is None


def test_completion_stream_tells_logprobs_in_every_chunk_when_asked() -> None:
    """Also in one without; the text that is kept for the finish keeps its tokens. Offsets go on from chunk to chunk."""
    framer = completion(2, max_tokens=3, tells_logprobs=True)
    a, b, c = told_text("abc")
    raw = framer.delta(0, Delta(1, "a", (1,), (a,))) + framer.delta(1, Delta(2, "x", (9,), (told(b"xS", 0, 2),)))
    raw += framer.delta(0, Delta(1, "bc", (2, 3), (b, c)))
    raw += framer.finish(0, finished(FinishReason.LENGTH)) + framer.finish(1, finished())
    told_choices = choices(raw)
    assert [(choice["index"], choice["text"], choice["logprobs"]["tokens"]) for choice in told_choices] == [
        (0, "a", ["a"]),
        (1, "x", []),
        (0, "bc", ["b", "c"]),
        (1, "", ["xS"]),
    ]
    assert [offset for choice in told_choices for offset in choice["logprobs"]["text_offset"]] == [0, 1, 2, 0]


def test_kept_text_takes_its_logprobs_along_when_the_stream_breaks() -> None:
    """Before the error."""
    framer = completion(max_tokens=1, tells_logprobs=True)
    framer.delta(0, Delta(1, "a", (1,), told_text("a")))
    kept, _ = chunks(framer.error(REFUSAL, USAGE))
    assert kept["choices"][0]["logprobs"]["tokens"] == ["a"]


@pytest.mark.parametrize("make", MAKERS)
def test_token_ids_and_logprobs_may_both_be_asked_for(make: Callable[..., Framer]) -> None:
    """Each in its key."""
    framer = make(return_token_ids=True, tells_logprobs=True)
    (choice,) = choices(framer.delta(0, Delta(1, "a", (1,), told_text("a"))))
    assert choice["token_ids"] == [1] and choice["logprobs"]


@pytest.mark.parametrize("make", MAKERS)
def test_body_tells_what_the_stream_tells_when_asked(make: Callable[..., Framer]) -> None:
    """The token that ended it is not told, the one that was cut is told as far as it goes; whole lists, if empty."""
    tokens = [*told_text("ab"), told(b"cSTOP", 2, 7), told(b"", 7, None)]
    framer, empty = make(tells_logprobs=True), make(tells_logprobs=True)
    framer.gather(0, Delta(1, "a", (1, 2), tuple(tokens[:2])))
    framer.gather(0, Delta(1, "bc", (3, 4), tuple(tokens[2:])))
    (choice,) = json.loads(body_of(framer, finished()))["choices"]
    assert entries(choice) == ["a", "b", "cSTOP"]
    empty.gather(0, Delta(1, "", (4,), tuple(tokens[-1:])))
    (choice,) = json.loads(body_of(empty, finished()))["choices"]
    assert entries(choice) == []


@pytest.mark.parametrize("make", MAKERS)
def test_body_is_the_same_when_its_logprobs_come_one_by_one(make: Callable[..., Framer]) -> None:
    """And each choice has its own; one that wants none gathers none."""
    texts = ("ab\u2028é", "xyz")
    at_once, one_by_one, plain = make(2, tells_logprobs=True), make(2, tells_logprobs=True), make(2)
    for index, text in enumerate(texts):
        tokens = told_text(text)
        at_once.gather(index, Delta(1, text, (), tokens))
        for character, token in zip(text, tokens, strict=True):
            one_by_one.gather(index, Delta(1, character, (), (token,)))
        plain.gather(index, Delta(1, text, ()))
    ends = [finished() for _ in texts]
    raw = body_of(one_by_one, *ends)
    assert raw == body_of(at_once, *ends)
    assert ["".join(entries(choice)) for choice in json.loads(raw)["choices"]] == list(texts)
    assert [choice["logprobs"] for choice in json.loads(body_of(plain, *ends))["choices"]] == [None, None]


@pytest.mark.parametrize("make", MAKERS)
def test_usage_is_null_until_the_end_when_asked_for(make: Callable[..., Framer]) -> None:
    """In every chunk but the last, which has no choices."""
    framer = make(include_usage=True)
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.finish(0, finished()) + framer.end(USAGE)
    *before, last = chunks(raw)
    assert before
    assert all(chunk["usage"] is None for chunk in before)
    assert (last["choices"], last["usage"]) == ([], USAGE_FIELDS)
    assert {key: last[key] for key in ("id", "created", "model")} == {"id": "id-1", "created": 7, "model": "m"}
    assert raw.endswith(b"}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("make", MAKERS)
def test_usage_has_no_key_when_not_asked_for(make: Callable[..., Framer]) -> None:
    """And no chunk is without choices."""
    framer = make()
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.finish(0, finished()) + framer.end(USAGE)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks(raw))


@pytest.mark.parametrize("make", MAKERS)
def test_delta_is_no_chunk_when_its_text_is_empty(make: Callable[..., Framer]) -> None:
    """Clients count chunks, and render each."""
    assert make().delta(0, delta("", 1, 2)) == b""
    assert make(return_token_ids=True).delta(0, delta("", 1, 2)) == b""


@pytest.mark.parametrize("make", MAKERS)
def test_token_ids_ride_on_the_next_chunk_when_their_text_is_empty(make: Callable[..., Framer]) -> None:
    """Each choice has its own; none is lost, none is told twice."""
    framer = make(2, return_token_ids=True)
    raw = b"".join(
        (
            framer.start(USAGE),
            framer.delta(0, delta("", 1)),
            framer.delta(1, delta("x", 9)),
            framer.delta(0, delta("ab", 2, 3)),
            framer.delta(0, delta("", 4)),
            framer.finish(0, finished()),
            framer.finish(1, finished()),
        )
    )
    told = [(choice["index"], choice["token_ids"]) for choice in choices(raw)]
    assert [entry for entry in told if entry[1]] == [(1, [9]), (0, [1, 2, 3]), (0, [4])]
    assert told[-1] == (1, [])


@pytest.mark.parametrize("make", MAKERS)
def test_token_ids_have_no_key_when_not_asked_for(make: Callable[..., Framer]) -> None:
    """They are an extension."""
    framer = make()
    assert b"token_ids" not in framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.finish(0, finished())


@pytest.mark.parametrize("make", MAKERS)
def test_end_by_the_server_is_no_finish_reason_when_framed(make: Callable[..., Framer]) -> None:
    """It must be told as an error: a client would take any word for success."""
    for reason in set(FinishReason) - {FinishReason.STOP, FinishReason.LENGTH}:
        with pytest.raises(InvariantError, match=reason.value):
            make().finish(0, finished(reason))
        with pytest.raises(InvariantError, match=reason.value):
            make().body([finished(reason)], USAGE)


def test_roles_come_first_and_once_when_there_are_several_choices() -> None:
    """One chunk per choice, content a string from the start."""
    framer = chat(3)
    first = choices(framer.start(USAGE))
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in first)
    assert choices(framer.delta(1, delta("a", 1)))[0]["delta"] == {"content": "a"}


def test_last_token_comes_with_the_finish_when_the_limit_is_reached() -> None:
    """As many chunks as tokens, not one more."""
    framer = completion(max_tokens=3)
    raws = [framer.delta(0, delta("a", 1)), framer.delta(0, delta("b", 2)), framer.delta(0, delta("c", 3))]
    raws.append(framer.finish(0, finished(FinishReason.LENGTH)))
    told = choices(b"".join(raws))
    assert [(choice["text"], choice["finish_reason"]) for choice in told] == [("a", None), ("b", None), ("c", "length")]
    assert raws[2] == b""


def test_text_that_was_held_back_joins_the_last_when_the_limit_is_reached() -> None:
    """The decoder may flush after the last token."""
    framer = completion(max_tokens=2, return_token_ids=True)
    raw = framer.delta(0, delta("a", 1, 2)) + framer.delta(0, delta("\ufffd"))
    assert raw == b""
    (choice,) = choices(framer.finish(0, finished(FinishReason.LENGTH)))
    assert (choice["text"], choice["token_ids"]) == ("a\ufffd", [1, 2])


@pytest.mark.parametrize("has_ids", [True, False], ids=["with ids", "without ids"])
def test_kept_text_goes_out_when_the_stream_breaks_before_the_finish(has_ids: bool) -> None:
    """Only the choices that keep text have such a chunk."""
    framer = completion(3, max_tokens=1, return_token_ids=has_ids)
    framer.delta(0, delta("a", 1))
    framer.delta(2, delta("c", 3))
    *kept, error = chunks(framer.error(REFUSAL, USAGE))
    told = [(c["choices"][0]["index"], c["choices"][0]["text"], c["choices"][0].get("token_ids")) for c in kept]
    assert told == ([(0, "a", [1]), (2, "c", [3])] if has_ids else [(0, "a", None), (2, "c", None)])
    assert error["error"]["code"] == "engine_died"


@pytest.mark.parametrize("make", MAKERS)
def test_usage_is_told_before_an_error_when_asked_for(make: Callable[..., Framer]) -> None:
    """A client that raises at the error reads no further."""
    framer = make(include_usage=True)
    *_, usage, error = chunks(framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.error(REFUSAL, USAGE))
    assert (usage["choices"], usage["usage"]) == ([], USAGE_FIELDS)
    assert error["error"]["code"] == "engine_died"


DELTAS = st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 2)), max_size=12)


@settings(max_examples=200, derandomize=True)
@given(deltas=DELTAS, max_tokens=st.integers(1, 12))
def test_completion_has_no_more_chunks_than_tokens_allowed_when_streamed(
    deltas: list[tuple[str, int]], max_tokens: int
) -> None:
    """And all text, all ids, all that is told, in order, with one finish at the end; nothing waits before the limit."""
    framer = completion(max_tokens=max_tokens, return_token_ids=True, tells_logprobs=True)
    raw, text, n_tokens = b"", "", 0
    for piece, n_new in deltas:
        if not n_new or n_tokens + n_new > max_tokens:
            continue
        new = [told(b"", len(text), len(text))] * (n_new - 1) + [told(piece.encode(), len(text), len(text + piece))]
        raw += framer.delta(0, Delta(1, piece, tuple(range(n_tokens, n_tokens + n_new)), tuple(new)))
        text, n_tokens = text + piece, n_tokens + n_new
        if n_tokens < max_tokens:
            assert "".join(choice["text"] for choice in choices(raw)) == text
    written = choices(raw + framer.finish(0, finished()))
    assert "".join(choice["text"] for choice in written) == text
    assert [token for choice in written for token in choice["token_ids"]] == list(range(n_tokens))
    assert "".join(token for choice in written for token in choice["logprobs"]["tokens"]) == text
    assert sum(len(choice["logprobs"]["tokens"]) for choice in written) == n_tokens
    assert [choice["finish_reason"] for choice in written] == [None] * (len(written) - 1) + ["stop"]
    assert len(written) <= max_tokens


def body_of(framer: Framer, *ends: Finished) -> bytes:
    """Joined."""
    return b"".join(framer.body(ends, USAGE))


@pytest.mark.parametrize("make", MAKERS)
def test_a_large_body_comes_in_pieces_of_a_bounded_size(make: Callable[..., Framer]) -> None:
    """Each byte of it was counted when it was gathered, but for the few that do not grow with its tokens."""
    framer = make(2, tells_logprobs=True, return_token_ids=True)
    text = "abcdefgh" * 1_000
    n_gathered = sum(framer.gather(index, Delta(1, text, (7,) * 8_000, told_text(text))) for index in range(2))
    pieces = framer.body([finished(), finished()], USAGE)
    assert len(pieces) > 4 and all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert n_gathered < sum(map(len, pieces)) < n_gathered + 1_000
    body = json.loads(b"".join(pieces))
    assert ["".join(entries(choice)) for choice in body["choices"]] == [text, text]
    assert [len(choice["token_ids"]) for choice in body["choices"]] == [8_000, 8_000]


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_kept_of_a_body_that_was_dropped_or_handed_over(make: Callable[..., Framer]) -> None:
    """An answer may live on for long after either."""
    framer = make()
    empty = body_of(framer, finished())
    framer.gather(0, Delta(1, "x", (1,)))
    assert b"x" in framer.drop()
    assert body_of(framer, finished()) == empty and framer.drop() == []
    framer.gather(0, Delta(1, "x", (1,)))
    assert b"x" in body_of(framer, finished()).replace(b"text", b"") and body_of(framer, finished()) == empty


def test_chat_body_is_a_completion_to_the_sdk_when_written() -> None:
    """All required keys, null where there is nothing."""
    framer = chat(2)
    framer.gather(0, Delta(1, "a\u2028", (1, 2)))
    framer.gather(1, Delta(2, "", (3,)))
    raw = body_of(framer, finished(), finished(FinishReason.LENGTH))
    body = json.loads(raw)
    parsed = ChatCompletion.model_validate(body, strict=False)
    assert [choice.finish_reason for choice in parsed.choices] == ["stop", "length"]
    assert parsed.choices[0].message.content == "a\u2028"
    assert b"\\u2028" in raw
    assert body["choices"][1] == {
        "index": 1,
        "message": {"role": "assistant", "content": "", "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert (body["object"], body["id"], body["created"], body["model"]) == ("chat.completion", "id-1", 7, "m")
    assert body["usage"] == USAGE_FIELDS


def test_completion_body_is_a_completion_to_the_sdk_when_written() -> None:
    """With the ids where they are wanted."""
    framer = completion(return_token_ids=True)
    framer.gather(0, Delta(1, "a", (1, 2)))
    body = json.loads(body_of(framer, finished()))
    assert Completion.model_validate(body).choices[0].text == "a"
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop", "token_ids": [1, 2]}
    ]


def sdk(raw: bytes) -> tuple[httpx.Client, openai.OpenAI]:
    """The official client, to which every request is answered with this stream."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=raw))
    http: Any = httpx.Client(transport=transport)  # the SDK's type for it differs between its versions
    return http, openai.OpenAI(api_key="k", base_url="http://server/v1", http_client=http, max_retries=0)


def test_sdk_reads_the_chat_stream_when_it_is_whole() -> None:
    """Strict types, one finish reason a choice, the same id throughout, the text as it was."""
    framer = chat(2, include_usage=True)
    texts = ["Hi", " \u2028😀\r\n", "\x85 \v\f", "data: [DONE]"]
    raw = framer.start(USAGE) + b"".join(framer.delta(i % 2, delta(text, 1)) for i, text in enumerate(texts))
    raw += framer.finish(1, finished()) + framer.finish(0, finished(FinishReason.LENGTH)) + framer.end(USAGE)
    for chunk in chunks(raw):
        ChatCompletionChunk.model_validate(chunk)
    http, client = sdk(raw)
    with http, client:
        read = list(client.chat.completions.create(model="m", messages=[], stream=True, n=2))
    told = [choice for chunk in read for choice in chunk.choices]
    assert {chunk.id for chunk in read} == {"id-1"}
    assert "".join(choice.delta.content or "" for choice in told if choice.index == 0) == texts[0] + texts[2]
    assert "".join(choice.delta.content or "" for choice in told if choice.index == 1) == texts[1] + texts[3]
    assert [(c.index, c.finish_reason) for c in told if c.finish_reason] == [(1, "stop"), (0, "length")]
    assert read[-1].usage is not None
    assert read[-1].usage.total_tokens == 8


def test_sdk_reads_the_completion_stream_when_it_is_whole() -> None:
    """The same for the older endpoint."""
    framer = completion(max_tokens=2)
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.delta(0, delta("b", 2))
    raw += framer.finish(0, finished(FinishReason.LENGTH)) + framer.end(USAGE)
    http, client = sdk(raw)
    with http, client:
        read = list(client.completions.create(model="m", prompt="x", stream=True))
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in read] == [("a", None), ("b", "length")]


@pytest.mark.parametrize("make", MAKERS)
def test_sdk_raises_our_words_when_the_stream_breaks(make: Callable[..., Framer]) -> None:
    """After the text that was sent; never a clean end."""
    framer = make()
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.error(REFUSAL, USAGE)
    assert raw.endswith(b'"type":"server_error","param":null,"code":"engine_died"}}\n\ndata: [DONE]\n\n')
    http, client = sdk(raw)
    with http, client:
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        with pytest.raises(openai.APIError, match=r"The engine died\.") as caught:
            list(stream)
    assert caught.value.code == "engine_died"


@pytest.mark.parametrize("make", [chat, partial(completion, max_tokens=500)])
def test_tokens_without_text_do_not_wait_for_ever_to_be_told(make: Callable[..., Framer]) -> None:
    """Special ones, say: many of them go out with no text, so that no chunk gets huge. Those of text to come wait."""
    framer = make(tells_logprobs=True)
    raw = b"".join(framer.delta(0, Delta(1, "", (7,), (told(b"", 0, 0),))) for _ in range(70))
    assert [
        (len(entries(one)), one.get("text") or one.get("delta", {}).get("content", "")) for one in choices(raw)
    ] == [
        (32, ""),
        (32, ""),
    ]
    (choice,) = choices(framer.delta(0, Delta(1, "a", (1,), (told(b"a", 0, 1),))))
    assert len(entries(choice)) == 7
    held = b"".join(framer.delta(0, Delta(1, "", (7,), (told(b"S", 1, 2),))) for _ in range(70))
    assert held == b""
