"""Streams and bodies of chat and completions: exact bytes, the SDK's types, and no token late or lost."""

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
from support.token_logprobs import logprobs_of, logprobs_of_characters

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
    has_logprobs: bool = False,
) -> GenerationRequest:
    return GenerationRequest(
        model="m",
        prompts=(TextPrompt("hi"),),
        n=n_choices,
        sampling=SamplingParams(max_tokens=max_tokens, logprobs=0 if has_logprobs else None),
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
    """The tokens that have logprobs in this choice, of chat or of a completion."""
    logprobs = choice["logprobs"]
    return logprobs["tokens"] if "tokens" in logprobs else [entry["token"] for entry in logprobs["content"]]


def test_chat_stream_has_these_bytes() -> None:
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


def test_completion_stream_has_these_bytes() -> None:
    """It starts with the first text. Its finish reason is in a chunk that has text, which may be empty."""
    framer = completion()
    head = 'data: {"id":"id-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,'
    assert framer.start(USAGE) == b""
    assert framer.delta(0, delta("a", 1)).decode() == (head + '"text":"a","logprobs":null,"finish_reason":null}]}\n\n')
    assert framer.finish(0, finished()).decode() == (head + '"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n')
    assert framer.end(USAGE) == b"data: [DONE]\n\n"


MAKERS: list[Callable[..., Framer]] = [chat, completion]


def test_chat_stream_sends_logprobs_with_the_text_of_their_tokens() -> None:
    """Those of a token without complete text wait for the next text, those of a cut token for the finish reason."""
    framer = chat(has_logprobs=True)
    one, half, cut, end = (
        logprobs_of(b"one", 0, 3),
        logprobs_of(b"\xc3", 3, 4),
        logprobs_of(b"\xa9STOP", 3, 8),
        logprobs_of(b"", 8, None),
    )
    raw = (
        framer.start(USAGE)
        + framer.delta(0, Delta(1, "one", (1,), (one,)))
        + framer.delta(0, Delta(1, "", (2,), (half,)))
    )
    raw += framer.delta(0, Delta(1, "", (3,), (cut,))) + framer.delta(0, Delta(1, "é", (4,), (end,)))
    streamed = choices(raw + framer.finish(0, finished()))
    assert [choice["logprobs"] and entries(choice) for choice in streamed] == [
        None,
        ["one"],
        ["\\xc3"],
        ["\\xa9STOP"],
    ]
    assert [choice["delta"].get("content") for choice in streamed] == ["", "one", "é", None]
    assert streamed[3]["logprobs"]["content"][0]["bytes"] == [0xA9]
    for chunk in chunks(raw):
        ChatCompletionChunk.model_validate(chunk)


def test_chat_chunk_has_null_for_logprobs_when_no_token_is_complete() -> None:
    """Its logprobs are null, since clients read the first entry of any list."""
    framer = chat(has_logprobs=True)
    raw = framer.delta(0, Delta(1, "a", (1,), (logprobs_of(b"aS", 0, 2),))) + framer.finish(
        0, finished(FinishReason.LENGTH)
    )
    first, last = choices(raw)
    assert first["logprobs"] is None and entries(last) == ["aS"]
    assert choices(chat(has_logprobs=True).finish(0, finished()))[0]["logprobs"] is None


def test_completion_stream_has_logprobs_in_every_chunk() -> None:
    """The lists are empty when no token is complete. Text offsets count from the start of the answer."""
    framer = completion(2, max_tokens=3, has_logprobs=True)
    a, b, c = logprobs_of_characters("abc")
    raw = framer.delta(0, Delta(1, "a", (1,), (a,))) + framer.delta(1, Delta(2, "x", (9,), (logprobs_of(b"xS", 0, 2),)))
    raw += framer.delta(0, Delta(1, "bc", (2, 3), (b, c)))
    raw += framer.finish(0, finished(FinishReason.LENGTH)) + framer.finish(1, finished())
    streamed = choices(raw)
    assert [(choice["index"], choice["text"], choice["logprobs"]["tokens"]) for choice in streamed] == [
        (0, "a", ["a"]),
        (1, "x", []),
        (0, "bc", ["b", "c"]),
        (1, "", ["xS"]),
    ]
    assert [offset for choice in streamed for offset in choice["logprobs"]["text_offset"]] == [0, 1, 2, 0]


def test_text_that_waits_for_the_finish_is_sent_with_its_logprobs_before_an_error() -> None:
    framer = completion(max_tokens=1, has_logprobs=True)
    framer.delta(0, Delta(1, "a", (1,), logprobs_of_characters("a")))
    kept, _ = chunks(framer.error(REFUSAL, USAGE))
    assert kept["choices"][0]["logprobs"]["tokens"] == ["a"]


@pytest.mark.parametrize("make", MAKERS)
def test_a_chunk_may_have_token_ids_and_logprobs(make: Callable[..., Framer]) -> None:
    framer = make(return_token_ids=True, has_logprobs=True)
    (choice,) = choices(framer.delta(0, Delta(1, "a", (1,), logprobs_of_characters("a"))))
    assert choice["token_ids"] == [1] and choice["logprobs"]


@pytest.mark.parametrize("make", MAKERS)
def test_body_has_the_logprobs_of_each_token_of_its_text(make: Callable[..., Framer]) -> None:
    """The token that ended the answer has none. A token that a stop string cuts has its own. Lists may be empty."""
    tokens = [*logprobs_of_characters("ab"), logprobs_of(b"cSTOP", 2, 7), logprobs_of(b"", 7, None)]
    framer, empty = make(has_logprobs=True), make(has_logprobs=True)
    framer.gather(0, Delta(1, "a", (1, 2), tuple(tokens[:2])))
    framer.gather(0, Delta(1, "bc", (3, 4), tuple(tokens[2:])))
    (choice,) = json.loads(body_of(framer, finished()))["choices"]
    assert entries(choice) == ["a", "b", "cSTOP"]
    empty.gather(0, Delta(1, "", (4,), tuple(tokens[-1:])))
    (choice,) = json.loads(body_of(empty, finished()))["choices"]
    assert entries(choice) == []


@pytest.mark.parametrize("make", MAKERS)
def test_body_is_the_same_when_its_logprobs_come_one_by_one(make: Callable[..., Framer]) -> None:
    """Each choice has the logprobs of its own tokens. Without logprobs in the request, each choice has null."""
    texts = ("ab\u2028é", "xyz")
    whole, split, plain = make(2, has_logprobs=True), make(2, has_logprobs=True), make(2)
    for index, text in enumerate(texts):
        tokens = logprobs_of_characters(text)
        whole.gather(index, Delta(1, text, (), tokens))
        for character, token in zip(text, tokens, strict=True):
            split.gather(index, Delta(1, character, (), (token,)))
        plain.gather(index, Delta(1, text, ()))
    ends = [finished() for _ in texts]
    raw = body_of(split, *ends)
    assert raw == body_of(whole, *ends)
    assert ["".join(entries(choice)) for choice in json.loads(raw)["choices"]] == list(texts)
    assert [choice["logprobs"] for choice in json.loads(body_of(plain, *ends))["choices"]] == [None, None]


@pytest.mark.parametrize("make", MAKERS)
def test_usage_is_null_in_every_chunk_but_the_last(make: Callable[..., Framer]) -> None:
    """The last chunk has the usage and no choices."""
    framer = make(include_usage=True)
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.finish(0, finished()) + framer.end(USAGE)
    *before, last = chunks(raw)
    assert before
    assert all(chunk["usage"] is None for chunk in before)
    assert (last["choices"], last["usage"]) == ([], USAGE_FIELDS)
    assert {key: last[key] for key in ("id", "created", "model")} == {"id": "id-1", "created": 7, "model": "m"}
    assert raw.endswith(b"}\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("make", MAKERS)
def test_without_usage_no_chunk_has_its_key_and_each_has_choices(make: Callable[..., Framer]) -> None:
    framer = make()
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.finish(0, finished()) + framer.end(USAGE)
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks(raw))


@pytest.mark.parametrize("make", MAKERS)
def test_delta_without_text_makes_no_chunk(make: Callable[..., Framer]) -> None:
    """Clients count chunks, and display each of them."""
    assert make().delta(0, delta("", 1, 2)) == b""
    assert make(return_token_ids=True).delta(0, delta("", 1, 2)) == b""


@pytest.mark.parametrize("make", MAKERS)
def test_token_ids_without_text_are_sent_with_the_next_chunk(make: Callable[..., Framer]) -> None:
    """Each is sent once, in a chunk of its own choice."""
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
    written = [(choice["index"], choice["token_ids"]) for choice in choices(raw)]
    assert [entry for entry in written if entry[1]] == [(1, [9]), (0, [1, 2, 3]), (0, [4])]
    assert written[-1] == (1, [])


@pytest.mark.parametrize("make", MAKERS)
def test_token_ids_have_no_key_when_the_request_does_not_ask_for_them(make: Callable[..., Framer]) -> None:
    """They are an extension of the protocol."""
    framer = make()
    assert b"token_ids" not in framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.finish(0, finished())


@pytest.mark.parametrize("make", MAKERS)
def test_only_stop_and_length_are_written_as_finish_reasons(make: Callable[..., Framer]) -> None:
    """The others must be sent as errors: to a client, an answer with any finish reason is a success."""
    for reason in set(FinishReason) - {FinishReason.STOP, FinishReason.LENGTH}:
        with pytest.raises(InvariantError, match=reason.value):
            make().finish(0, finished(reason))
        with pytest.raises(InvariantError, match=reason.value):
            make().body([finished(reason)], USAGE)


def test_each_choice_of_a_chat_begins_with_one_chunk_for_its_role() -> None:
    """Its content is an empty string, so that clients can always join the contents."""
    framer = chat(3)
    first = choices(framer.start(USAGE))
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert all(choice["delta"] == {"role": "assistant", "content": ""} for choice in first)
    assert choices(framer.delta(1, delta("a", 1)))[0]["delta"] == {"content": "a"}


def test_last_token_of_a_completion_and_its_finish_reason_share_a_chunk_at_the_limit() -> None:
    """So there are as many chunks as tokens."""
    framer = completion(max_tokens=3)
    raws = [framer.delta(0, delta("a", 1)), framer.delta(0, delta("b", 2)), framer.delta(0, delta("c", 3))]
    raws.append(framer.finish(0, finished(FinishReason.LENGTH)))
    written = choices(b"".join(raws))
    assert [(choice["text"], choice["finish_reason"]) for choice in written] == [
        ("a", None),
        ("b", None),
        ("c", "length"),
    ]
    assert raws[2] == b""


def test_text_that_comes_after_the_last_token_is_sent_with_it() -> None:
    """The detokenizer may hold back text until the sequence finishes."""
    framer = completion(max_tokens=2, return_token_ids=True)
    raw = framer.delta(0, delta("a", 1, 2)) + framer.delta(0, delta("\ufffd"))
    assert raw == b""
    (choice,) = choices(framer.finish(0, finished(FinishReason.LENGTH)))
    assert (choice["text"], choice["token_ids"]) == ("a\ufffd", [1, 2])


@pytest.mark.parametrize("has_ids", [True, False], ids=["with ids", "without ids"])
def test_text_that_waits_for_the_finish_is_sent_before_an_error(has_ids: bool) -> None:
    """Choices without such text have no further chunk."""
    framer = completion(3, max_tokens=1, return_token_ids=has_ids)
    framer.delta(0, delta("a", 1))
    framer.delta(2, delta("c", 3))
    *kept, error = chunks(framer.error(REFUSAL, USAGE))
    written = [(c["choices"][0]["index"], c["choices"][0]["text"], c["choices"][0].get("token_ids")) for c in kept]
    assert written == ([(0, "a", [1]), (2, "c", [3])] if has_ids else [(0, "a", None), (2, "c", None)])
    assert error["error"]["code"] == "engine_died"


@pytest.mark.parametrize("make", MAKERS)
def test_usage_is_sent_before_an_error(make: Callable[..., Framer]) -> None:
    """A client that raises an exception for the error reads no further."""
    framer = make(include_usage=True)
    *_, usage, error = chunks(framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.error(REFUSAL, USAGE))
    assert (usage["choices"], usage["usage"]) == ([], USAGE_FIELDS)
    assert error["error"]["code"] == "engine_died"


DELTAS = st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 2)), max_size=12)


@settings(max_examples=200, derandomize=True)
@given(deltas=DELTAS, max_tokens=st.integers(1, 12))
def test_completion_stream_has_at_most_max_tokens_chunks(deltas: list[tuple[str, int]], max_tokens: int) -> None:
    """The chunks have all text, ids and logprobs in order, and one finish reason. Until the limit, no text waits."""
    framer = completion(max_tokens=max_tokens, return_token_ids=True, has_logprobs=True)
    raw, text, n_tokens = b"", "", 0
    for piece, n_new in deltas:
        if not n_new or n_tokens + n_new > max_tokens:
            continue
        new = [logprobs_of(b"", len(text), len(text))] * (n_new - 1) + [
            logprobs_of(piece.encode(), len(text), len(text + piece))
        ]
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
    return b"".join(framer.body(ends, USAGE))


@pytest.mark.parametrize("make", MAKERS)
def test_a_large_body_comes_in_pieces_of_a_bounded_size(make: Callable[..., Framer]) -> None:
    """`gather` has counted all its bytes, except the few that do not grow with the number of tokens."""
    framer = make(2, has_logprobs=True, return_token_ids=True)
    text = "abcdefgh" * 1_000
    n_gathered = sum(
        framer.gather(index, Delta(1, text, (7,) * 8_000, logprobs_of_characters(text))) for index in range(2)
    )
    pieces = framer.body([finished(), finished()], USAGE)
    assert len(pieces) > 4 and all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert n_gathered < sum(map(len, pieces)) < n_gathered + 1_000
    body = json.loads(b"".join(pieces))
    assert ["".join(entries(choice)) for choice in body["choices"]] == [text, text]
    assert [len(choice["token_ids"]) for choice in body["choices"]] == [8_000, 8_000]


@pytest.mark.parametrize("make", MAKERS)
def test_framer_keeps_nothing_of_a_body_that_it_dropped_or_returned(make: Callable[..., Framer]) -> None:
    """The framer may live for a long time after that."""
    framer = make()
    empty = body_of(framer, finished())
    framer.gather(0, Delta(1, "x", (1,)))
    assert b"x" in framer.drop()
    assert body_of(framer, finished()) == empty and framer.drop() == []
    framer.gather(0, Delta(1, "x", (1,)))
    assert b"x" in body_of(framer, finished()).replace(b"text", b"") and body_of(framer, finished()) == empty


def test_sdk_accepts_the_chat_body() -> None:
    """It has all required keys, with null where there is no value."""
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


def test_sdk_accepts_the_completion_body() -> None:
    """Token ids are an additional key."""
    framer = completion(return_token_ids=True)
    framer.gather(0, Delta(1, "a", (1, 2)))
    body = json.loads(body_of(framer, finished()))
    assert Completion.model_validate(body).choices[0].text == "a"
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop", "token_ids": [1, 2]}
    ]


def sdk(raw: bytes) -> tuple[httpx.Client, openai.OpenAI]:
    """The official client, with a transport that answers every request with this stream."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=raw))
    http: Any = httpx.Client(transport=transport)  # the SDK's type for it differs between its versions
    return http, openai.OpenAI(api_key="k", base_url="http://server/v1", http_client=http, max_retries=0)


def test_sdk_reads_a_whole_chat_stream() -> None:
    """Its types fit, each choice has one finish reason, all chunks have the same id, and no text is changed."""
    framer = chat(2, include_usage=True)
    texts = ["Hi", " \u2028😀\r\n", "\x85 \v\f", "data: [DONE]"]
    raw = framer.start(USAGE) + b"".join(framer.delta(i % 2, delta(text, 1)) for i, text in enumerate(texts))
    raw += framer.finish(1, finished()) + framer.finish(0, finished(FinishReason.LENGTH)) + framer.end(USAGE)
    for chunk in chunks(raw):
        ChatCompletionChunk.model_validate(chunk)
    http, client = sdk(raw)
    with http, client:
        read = list(client.chat.completions.create(model="m", messages=[], stream=True, n=2))
    written = [choice for chunk in read for choice in chunk.choices]
    assert {chunk.id for chunk in read} == {"id-1"}
    assert "".join(choice.delta.content or "" for choice in written if choice.index == 0) == texts[0] + texts[2]
    assert "".join(choice.delta.content or "" for choice in written if choice.index == 1) == texts[1] + texts[3]
    assert [(c.index, c.finish_reason) for c in written if c.finish_reason] == [(1, "stop"), (0, "length")]
    assert read[-1].usage is not None
    assert read[-1].usage.total_tokens == 8


def test_sdk_reads_a_whole_completion_stream() -> None:
    framer = completion(max_tokens=2)
    raw = framer.start(USAGE) + framer.delta(0, delta("a", 1)) + framer.delta(0, delta("b", 2))
    raw += framer.finish(0, finished(FinishReason.LENGTH)) + framer.end(USAGE)
    http, client = sdk(raw)
    with http, client:
        read = list(client.completions.create(model="m", prompt="x", stream=True))
    assert [(chunk.choices[0].text, chunk.choices[0].finish_reason) for chunk in read] == [("a", None), ("b", "length")]


@pytest.mark.parametrize("make", MAKERS)
def test_sdk_raises_the_message_of_an_error_in_a_stream(make: Callable[..., Framer]) -> None:
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
def test_logprobs_of_many_tokens_without_text_are_sent_in_chunks_of_32(make: Callable[..., Framer]) -> None:
    """Special tokens have no text, and one chunk for all of them would be too large. Tokens of unsent text wait."""
    framer = make(has_logprobs=True)
    raw = b"".join(framer.delta(0, Delta(1, "", (7,), (logprobs_of(b"", 0, 0),))) for _ in range(70))
    assert [
        (len(entries(one)), one.get("text") or one.get("delta", {}).get("content", "")) for one in choices(raw)
    ] == [
        (32, ""),
        (32, ""),
    ]
    (choice,) = choices(framer.delta(0, Delta(1, "a", (1,), (logprobs_of(b"a", 0, 1),))))
    assert len(entries(choice)) == 7
    held = b"".join(framer.delta(0, Delta(1, "", (7,), (logprobs_of(b"S", 1, 2),))) for _ in range(70))
    assert held == b""
