"""Bodies of every endpoint to requests: in the process that asks, or in a worker process whose answer is cheap to read.

A large body may take seconds to read and check, and gigabytes meanwhile. `build` is what a worker process does it with:
`job_head` and the body are a job, and `read_result` makes of its result what `read_body` would have returned or
raised. Prompts stay encoded on that way, so that nobody decodes megabytes of text only to pass them on.
"""

from __future__ import annotations

import enum
import gc
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from sluiceway.errors import Refusal, RequestError
from sluiceway.messages.to_tokenizer import ChatPrompt, Prompt, TokenPrompt
from sluiceway.protocols.native.request import NativeRequest, parse_native
from sluiceway.protocols.openai.chat import ChatRequest, parse_chat
from sluiceway.protocols.openai.completions import CompletionRequest, parse_completion
from sluiceway.protocols.openai.errors import model_not_found
from sluiceway.refusals import prompt_too_long

Request: TypeAlias = ChatRequest | CompletionRequest | NativeRequest
"""A request that can be served, as far as its body shows."""


class Endpoint(enum.Enum):
    """Where a body was sent to. The value is the first byte of a job."""

    CHAT = 0
    COMPLETIONS = 1
    STREAM = 2
    GENERATE = 3


_PARSE: Mapping[Endpoint, Callable[[bytes, str], Request]] = MappingProxyType(
    {
        Endpoint.CHAT: lambda body, _: parse_chat(body),
        Endpoint.COMPLETIONS: lambda body, _: parse_completion(body),
        Endpoint.STREAM: lambda body, served_name: parse_native(body, served_name, is_streamed=True),
        Endpoint.GENERATE: lambda body, served_name: parse_native(body, served_name, is_streamed=False),
    }
)
_TYPES: Mapping[Endpoint, type[Request]] = MappingProxyType(
    {
        Endpoint.CHAT: ChatRequest,
        Endpoint.COMPLETIONS: CompletionRequest,
        Endpoint.STREAM: NativeRequest,
        Endpoint.GENERATE: NativeRequest,
    }
)

_JOB_HEAD = struct.Struct("<BQ")


class _Read(msgspec.Struct, array_like=True):
    """What a job has come to: a refusal, or a request without its prompts, and these."""

    refusal: Refusal | None
    request: msgspec.Raw = msgspec.Raw(b"\xc0")
    prompts: msgspec.Raw = msgspec.Raw(b"\xc0")


def read_body(endpoint: Endpoint, body: bytes, served_name: str) -> Request:
    """Raises `RequestError`. `served_name` is the name of the one model."""
    request = _PARSE[endpoint](body, served_name)
    if request.generation.model != served_name:
        raise RequestError(model_not_found(request.generation.model))
    return request


def job_head(endpoint: Endpoint, max_sequence_tokens: int | None) -> bytes:
    """What comes before the body in a job. None: it is not known yet how long a sequence may be."""
    return _JOB_HEAD.pack(endpoint.value, max_sequence_tokens or 0)


def build(init: bytes) -> Callable[[bytes], bytes]:
    """The function that does jobs. `init` is the served name."""
    served_name = init.decode()
    gc.disable()  # JSON has no cycles, and to look for them among a million values takes as long as to read these

    def work(job: bytes) -> bytes:
        number, max_sequence_tokens = _JOB_HEAD.unpack_from(job)
        body = job[_JOB_HEAD.size :]
        try:
            request = read_body(Endpoint(number), body, served_name)
            _check_lengths(request.generation.prompts, max_sequence_tokens)
        except RequestError as error:
            return msgspec.msgpack.encode(_Read(error.refusal))
        prompts = msgspec.msgpack.encode(request.generation.prompts)
        rest = replace(request, generation=request.generation.without_text())
        return msgspec.msgpack.encode(_Read(None, msgspec.Raw(msgspec.msgpack.encode(rest)), msgspec.Raw(prompts)))

    return work


def read_result(endpoint: Endpoint, result: bytes) -> Request:
    """The request that a job has read. Raises `RequestError` where it refused the body."""
    read = msgspec.msgpack.decode(result, type=_Read)
    if read.refusal is not None:
        raise RequestError(read.refusal)
    request = msgspec.msgpack.decode(read.request, type=_TYPES[endpoint])
    return replace(request, generation=replace(request.generation, encoded_prompts=bytes(read.prompts)))


def _check_lengths(prompts: tuple[Prompt, ...], max_sequence_tokens: int) -> None:
    """Refuse what cannot fit as soon as that is known: every message and every token id costs a token at least."""
    for prompt in prompts:
        match prompt:
            case TokenPrompt(token_ids) if 0 < max_sequence_tokens <= len(token_ids):
                raise RequestError(prompt_too_long(f"{len(token_ids)}", max_sequence_tokens))
            case ChatPrompt(messages) if 0 < max_sequence_tokens <= len(messages):
                raise RequestError(prompt_too_long(f"at least {len(messages)}", max_sequence_tokens))
            case _:
                pass
