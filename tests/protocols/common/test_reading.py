"""A worker process reads the same request from a body as the API process, or raises the same error."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.codec import Decoder, encode
from sluiceway.ipc.messages.to_tokenizer import FromApi, Prompt, Tokenize, TokenizeEncoded
from sluiceway.lengths import LengthBound
from sluiceway.protocols.common.generation import Endpoint, GenerationRequest
from sluiceway.protocols.common.reading import PromptRoom, body_reader, job_head, read_result
from sluiceway.protocols.endpoints import ENDPOINTS
from sluiceway.protocols.native.requests import GENERATE, STREAM
from sluiceway.protocols.openai.requests import CHAT, COMPLETIONS

CHAT_BODY = {"messages": [{"role": "user", "content": "é"}, {"role": "assistant", "content": "b", "name": "c"}]}
TEXT = {"prompt": "x", "n": None}
BODIES: list[tuple[Endpoint, dict[str, Any]]] = [
    (CHAT, CHAT_BODY | {"model": "m", "stream": True, "stream_options": {"include_usage": True}}),
    (CHAT, CHAT_BODY | {"model": "m", "sluiceway": {"slow_client": {"policy": "drop"}}, "logit_bias": {"3": 1}}),
    (COMPLETIONS, {"model": "m", "prompt": [[1, 2], [3]], "n": 2, "stop": ["a"], "seed": (1 << 64) - 1}),
    (COMPLETIONS, {"model": "m", "prompt": ["a", "b"], "logprobs": 2, "return_token_ids": True}),
    (STREAM, {"prompt": "x", "resumable": True, "stop_token_ids": [3]}),
    (GENERATE, CHAT_BODY | {"max_tokens": 3, "temperature": 0}),
]


@pytest.fixture(autouse=True)
def collect_garbage() -> Iterator[None]:
    """Enable the garbage collector again after each test: `body_reader` disables it."""
    yield
    gc.enable()


UNKNOWN = PromptRoom()
"""The engine has not sent the maximal length of a sequence yet."""
BYTES = LengthBound(bytes_a_token=2, lost_bytes=b"-")
"""The bound of a tokenizer whose longest token has two bytes, and which drops hyphens."""


def read_by_worker(endpoint: Endpoint, body: bytes, room: PromptRoom = UNKNOWN) -> GenerationRequest:
    return read_result(body_reader(ENDPOINTS, "m")(job_head(endpoint, room) + body))


def refusal_of(endpoint: Endpoint, body: bytes, room: PromptRoom = UNKNOWN) -> Refusal:
    with pytest.raises(RequestError) as caught:
        read_by_worker(endpoint, body, room)
    return caught.value.refusal


@pytest.mark.parametrize(("endpoint", "fields"), BODIES)
def test_a_worker_reads_the_same_request(endpoint: Endpoint, fields: dict[str, Any]) -> None:
    """Only its prompts are still encoded."""
    body = json.dumps(fields).encode()
    here, there = endpoint.read(body, "m"), read_by_worker(endpoint, body)
    encoded = there.encoded_prompts
    assert encoded is not None
    assert msgspec.msgpack.decode(encoded, type=tuple[Prompt, ...]) == here.prompts
    assert there.n_choices == here.n_choices
    assert there.prompt_field == here.prompt_field
    assert there.without_text() == here.without_text()


@pytest.mark.parametrize(("endpoint", "fields"), BODIES)
def test_encoded_prompts_of_a_worker_reach_the_tokenizer_as_they_are(
    endpoint: Endpoint, fields: dict[str, Any]
) -> None:
    """The message has the same bytes as if the API process had encoded them."""
    body = json.dumps(fields).encode()
    generation = endpoint.read(body, "m")
    encoded = read_by_worker(endpoint, body).encoded_prompts
    assert encoded is not None
    rest: dict[str, Any] = {"rids": (1,), "sampling": generation.sampling, "stop": ("s",), "is_watched": True}
    whole = Tokenize(prompts=generation.prompts, **rest)
    passed_on = TokenizeEncoded(prompts=msgspec.Raw(encoded), **rest)
    assert encode(passed_on) == encode(whole)
    decoder: Decoder[FromApi] = Decoder(FromApi)
    assert decoder.decode(encode(passed_on)) == whole


@pytest.mark.parametrize("body", [b"{", b'{"model": "m"}', b'{"model": "m", "model": "m"}', b'{"prompt": 5}'])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_a_worker_refuses_a_body_with_the_same_error(endpoint: Endpoint, body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        endpoint.read(body, "m")
    assert refusal_of(endpoint, body) == caught.value.refusal


def test_a_worker_refuses_another_model() -> None:
    assert refusal_of(STREAM, b'{"prompt": "x", "model": "other"}').status == 404


@pytest.mark.parametrize(
    ("endpoint", "fields", "n_tokens"),
    [
        (STREAM, {"prompt": [7] * 5}, "5"),
        (COMPLETIONS, {"model": "m", "prompt": [[1], [7] * 5]}, "5"),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": ""}] * 5}, "at least 5"),
        (CHAT, {"model": "m", "messages": [{"role": "user", "content": "abcde"}] * 2}, "at least 5"),
        (STREAM, {"prompt": "a-b-c-d-é-e-f-g"}, "at least 5"),
        (COMPLETIONS, {"model": "m", "prompt": ["a", "😀" * 5]}, "at least 10"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_when_the_maximal_length_is_known(
    endpoint: Endpoint, fields: dict[str, Any], n_tokens: str
) -> None:
    """One token must remain for the answer. Before the engine has sent the maximal length, every prompt passes."""
    body = json.dumps(fields).encode()
    refusal = refusal_of(endpoint, body, PromptRoom(5, BYTES))
    assert refusal.code == "context_length_exceeded" and f"{n_tokens} tokens" in refusal.message
    assert refusal.param == ("messages" if endpoint is CHAT else "prompt")
    assert read_by_worker(endpoint, body, PromptRoom(11, BYTES)) and read_by_worker(
        endpoint, body, PromptRoom(None, BYTES)
    )


def test_any_text_passes_when_the_size_of_tokens_is_not_known() -> None:
    """The tokenizer process checks its length later."""
    assert read_by_worker(STREAM, b'{"prompt": "' + b"x" * 1000 + b'"}', PromptRoom(5))
