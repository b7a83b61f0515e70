"""Logprobs over real sockets: the same in the `openai` package, in the native protocol, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionTokenLogprob

from sluiceway.sse.decoder import EventDecoder
from support.requests import served_name
from support.server import Server

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 5},
    {"temperature": 0, "stop": "o"},
    {"temperature": 0, "frequency_penalty": 1.5, "logit_bias": {"65": -50}},
    {"temperature": 0, "n": 3},
    {"temperature": 0, "extra_body": {"sluiceway": {"speculation": "ngram"}}},
    {"temperature": 0, "extra_body": {"sluiceway": {"resumable": True}}, "stream": None},
]


@pytest.fixture
def client(fake: Server) -> Iterator[openai.OpenAI]:
    with client_of(fake) as client:
        yield client


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def whole_chat(client: openai.OpenAI, **fields: Any) -> dict[int, tuple[str, list[ChatCompletionTokenLogprob]]]:
    answer = client.chat.completions.create(**fields)
    choices = {}
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        choices[choice.index] = (choice.message.content or "", choice.logprobs.content)
    return choices


def streamed_chat(client: openai.OpenAI, **fields: Any) -> dict[int, tuple[str, list[ChatCompletionTokenLogprob]]]:
    """The text and the logprobs of each choice. In a stream the logprobs are never ahead of the text."""
    choices: dict[int, tuple[str, list[ChatCompletionTokenLogprob]]] = {}
    for chunk in client.chat.completions.create(stream=True, **fields):
        for choice in chunk.choices:
            text, entries = choices.get(choice.index, ("", []))
            text += choice.delta.content or ""
            entries = entries + ((choice.logprobs and choice.logprobs.content) or [])
            assert text.startswith(joined(entries))
            choices[choice.index] = (text, entries)
    return choices


def joined(entries: list[ChatCompletionTokenLogprob]) -> str:
    return b"".join(bytes(entry.bytes or ()) for entry in entries).decode("utf-8", "replace")


def assert_complete(text: str, entries: list[ChatCompletionTokenLogprob], n_top: int) -> None:
    """The logprobs cover the whole text, likeliest token first, with exactly `n_top` alternatives."""
    assert joined(entries) == text
    for entry in entries:
        numbers = [top.logprob for top in entry.top_logprobs]
        assert len(numbers) == n_top and numbers == sorted(numbers, reverse=True)
        assert all(-9999.0 <= number <= 0.0 for number in (*numbers, entry.logprob))


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "+".join(settings))
def test_a_streamed_chat_has_the_logprobs_of_the_whole_answer(
    client: openai.OpenAI, fake: Server, settings: dict[str, Any]
) -> None:
    """Every entry is the same, in order, for every choice."""
    fields = {"model": served_name(fake), "messages": HELLO, "max_tokens": 40, "logprobs": True, "top_logprobs": 3}
    wanted = {name: value for name, value in settings.items() if name != "stream"}
    streamed = streamed_chat(client, **fields, **wanted)
    if "stream" not in settings:  # only a stream may ask for it
        assert streamed == whole_chat(client, **fields, **wanted)
    for text, entries in streamed.values():
        assert text
        assert_complete(text, entries, 3)


@pytest.mark.parametrize(("options", "n_top"), [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 20}, 20)])
def test_chat_has_as_many_top_logprobs_as_requested(
    client: openai.OpenAI, fake: Server, options: dict[str, Any], n_top: int
) -> None:
    """With none, the token still has its own logprob."""
    ((text, entries),) = whole_chat(
        client, model=served_name(fake), messages=HELLO, max_tokens=5, logprobs=True, **options
    ).values()
    assert_complete(text, entries, n_top)


@pytest.mark.parametrize(
    ("path", "options", "param"),
    [
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"logprobs": 3}, "logprobs"),
        ("completions", {"logprobs": 6}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"logprobs": 1, "echo": True}, "echo"),
        ("generate", {"logprobs": 21}, "logprobs"),
    ],
)
def test_unsupported_logprobs_are_refused_by_name(fake: Server, path: str, options: dict[str, Any], param: str) -> None:
    """They are refused before anything is held."""
    body: dict[str, Any] = {"messages": HELLO} if path == "chat/completions" else {"prompt": "once"}
    status, refused = fake.post(f"/v1/{path}", {"model": served_name(fake), "max_tokens": 1, **body, **options})
    assert (status, refused["error"]["param"]) == (400, param)


@pytest.mark.parametrize("n_top", [0, 2, 5])
@pytest.mark.parametrize("settings", SETTINGS[:5], ids=lambda settings: "+".join(settings))
def test_a_streamed_completion_has_the_logprobs_of_the_whole_answer(
    client: openai.OpenAI, fake: Server, settings: dict[str, Any], n_top: int
) -> None:
    """Every chunk has a logprobs object, and offsets continue from chunk to chunk."""
    fields = {"model": served_name(fake), "prompt": ["once", "twice"], "max_tokens": 30, "logprobs": n_top, **settings}
    whole = client.completions.create(**fields)
    chunks = list(client.completions.create(stream=True, **fields))
    for choice in whole.choices:
        assert choice.logprobs is not None and choice.logprobs.text_offset is not None
        assert choice.logprobs.tokens is not None and choice.logprobs.top_logprobs is not None
        assert choice.text.startswith("".join(choice.logprobs.tokens))
        assert [choice.text[n] for n in choice.logprobs.text_offset] == [t[0] for t in choice.logprobs.tokens]
        assert {len(top) for top in choice.logprobs.top_logprobs} <= {max(n_top, 1), n_top + 1}
        parts = [own.logprobs for chunk in chunks for own in chunk.choices if own.index == choice.index]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [one for part in parts for one in getattr(part, key)] == getattr(choice.logprobs, key)


def native(server: Server, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The token events of a native stream."""
    with server.connect() as connection:
        connection.request("POST", "/v1/stream", body)
        assert connection.read_head()[0] == 200
        raw = b"".join(connection.read_chunks())
    return [json.loads(event.data) for event in EventDecoder().feed(raw) if event.event == "token"]


def test_each_native_token_event_has_logprobs(fake: Server) -> None:
    """Also events whose text is held back or empty. Without the option there is no key."""
    body = {"prompt": "once", "max_tokens": 40, "temperature": 0, "logprobs": 2}
    text = fake.post("/v1/generate", body)[1]["text"]
    for options in ({}, {"stop": text[20:23]}, {"speculation": "ngram"}):
        events = [event for event in native(fake, body | options) if event["id"] is not None]
        _, whole = fake.post("/v1/generate", body | options)
        assert [{"logprob": event["logprob"], "top": event["top"]} for event in events] == whole["logprobs"]
        assert len(whole["logprobs"]) == len(whole["token_ids"])
        assert all(event["top"][0]["id"] == event["id"] for event in events)
    del body["logprobs"]
    assert "logprobs" not in fake.post("/v1/generate", body)[1] and "logprob" not in native(fake, body)[0]


EMOJI = "😀🎉😀🎉😀🎉😀🎉😀🎉"


@pytest.mark.slow
def test_characters_of_several_tokens_have_logprobs_byte_by_byte(model: Server) -> None:
    """The model repeats emoji, each of which has several tokens: streamed, whole, and cut by a stop string."""
    with client_of(model) as client:
        fields: dict[str, Any] = {
            "model": served_name(model),
            "messages": [
                {"role": "user", "content": f"Repeat after me: {EMOJI}"},
                {"role": "assistant", "content": EMOJI},
            ]
            * 2
            + [{"role": "user", "content": f"Repeat after me: {EMOJI}"}],
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 5,
        }
        for n_tokens, options in ((24, {}), (2, {}), (24, {"stop": "🎉"})):
            choices = whole_chat(client, max_tokens=n_tokens, **fields, **options)
            assert choices == streamed_chat(client, max_tokens=n_tokens, **fields, **options)
            ((text, entries),) = choices.values()
            assert_complete(text, entries, 5)
            assert any(bytes(entry.bytes or ()).decode("utf-8", "ignore") == "" for entry in entries), text
            assert all(entry.top_logprobs[0].token == entry.token for entry in entries)


@pytest.mark.slow
def test_logprobs_are_the_same_with_speculation_and_in_a_batch(model: Server) -> None:
    """Without drafts one after another, with drafts all together. In float32 only the last digits differ."""
    bodies = [
        {"prompt": prompt, "max_tokens": 24, "logprobs": 3, **settings}
        for prompt in ("one apple, two pears, three plums, " * 4, "The harbour lay quiet.")
        for settings in ({"temperature": 0}, {"temperature": 0.7, "seed": 3}, {"temperature": 0, "presence_penalty": 1})
    ]
    alone = [model.post("/v1/generate", body)[1] for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: model.post("/v1/generate", body | {"speculation": "ngram"})[1], bodies))
    for one, other in zip(alone, together, strict=True):
        assert one["token_ids"] == other["token_ids"]
        for mine, theirs in zip(one["logprobs"], other["logprobs"], strict=True):
            assert [top["id"] for top in mine["top"]] == [top["id"] for top in theirs["top"]]
            assert mine["logprob"] == pytest.approx(theirs["logprob"], abs=1e-3)
