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
from typing import NamedTuple, TypeAlias

import msgspec

from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.to_tokenizer import TextPrompt, TokenPrompt
from sluiceway.lengths import LengthBound
from sluiceway.protocols.common.generation import Generation
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

_HEAD_SIZE = struct.Struct("<I")


class PromptRoom(NamedTuple):
    """How long a sequence may be (None: it is not known yet), and how few tokens a text can become."""

    max_sequence_tokens: int | None = None
    length_bound: LengthBound = LengthBound()


class _Read(msgspec.Struct, array_like=True):
    """What a job has come to: a refusal, or a request without its prompts, and these."""

    refusal: Refusal | None
    request: msgspec.Raw = msgspec.Raw(b"\xc0")
    prompts: msgspec.Raw = msgspec.Raw(b"\xc0")


def read_body(endpoint: Endpoint, body: bytes, served_name: str) -> Request:
    """Raises `RequestError`. `served_name` is the name of the one model."""
    request = _PARSE[endpoint](body, served_name)
    if request.generation.model != served_name:
        raise RequestError(model_not_found(request.generation.model, served_name))
    return request


def job_head(endpoint: Endpoint, room: PromptRoom) -> bytes:
    """What comes before the body in a job."""
    head = msgspec.msgpack.encode((endpoint.value, room))
    return _HEAD_SIZE.pack(len(head)) + head


def build(init: bytes) -> Callable[[bytes], bytes]:
    """The function that does jobs. `init` is the served name."""
    served_name = init.decode()
    gc.disable()  # JSON has no cycles, and to look for them among a million values takes as long as to read these

    def work(job: bytes) -> bytes:
        [head_size] = _HEAD_SIZE.unpack_from(job)
        body_place = _HEAD_SIZE.size + head_size
        number, room = msgspec.msgpack.decode(job[_HEAD_SIZE.size : body_place], type=tuple[int, PromptRoom])
        try:
            request = read_body(Endpoint(number), job[body_place:], served_name)
            _check_lengths(request.generation, room)
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


def _check_lengths(generation: Generation, room: PromptRoom) -> None:
    """Refuse what cannot fit, so that no other process reads megabytes of it: in the words of the tokenizer process."""
    if room.max_sequence_tokens is None:
        return
    for prompt in generation.prompts:
        if isinstance(prompt, TokenPrompt):
            n_tokens = len(prompt.token_ids)
        elif isinstance(prompt, TextPrompt):
            n_tokens = room.length_bound.min_tokens_of(prompt.text)
        else:
            n_tokens = len(prompt.messages)  # each costs a token at least
            if n_tokens < room.max_sequence_tokens:
                n_tokens = room.length_bound.min_tokens_of("".join(message.content for message in prompt.messages))
        if n_tokens >= room.max_sequence_tokens:
            at_least = "" if isinstance(prompt, TokenPrompt) else "at least "
            refusal = prompt_too_long(f"{at_least}{n_tokens}", room.max_sequence_tokens)
            raise RequestError(msgspec.structs.replace(refusal, param=generation.prompt_field))
