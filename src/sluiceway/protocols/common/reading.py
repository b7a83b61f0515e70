"""Reads the body of a request in a worker process, and passes the result on cheaply.

A large body may take seconds and gigabytes to read and check. The API process makes a job of it (`job_head` and the
body). The worker process reads the body with the function that `body_reader` returns. `read_result` then gives the same
request, or raises the same error, as `Endpoint.read` would have. The prompts stay encoded in the result, so the API
process does not decode megabytes of text only to pass them on.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import msgspec

from sluiceway.errors import Refusal, RequestError
from sluiceway.ipc.messages.to_tokenizer import TextPrompt, TokenPrompt
from sluiceway.lengths import LengthBound
from sluiceway.protocols.common.generation import Endpoint, GenerationRequest
from sluiceway.refusals import prompt_too_long

_HEAD_SIZE = struct.Struct("<I")


class PromptRoom(NamedTuple):
    """How long a sequence may be (None: not known yet), and the least number of tokens that a text can have."""

    max_sequence_tokens: int | None = None
    length_bound: LengthBound = LengthBound()


class _JobResult(msgspec.Struct, array_like=True):
    """The result of a job: a refusal, or a request without its prompts, and the prompts."""

    refusal: Refusal | None
    request: msgspec.Raw = msgspec.Raw(b"\xc0")
    prompts: msgspec.Raw = msgspec.Raw(b"\xc0")


def job_head(endpoint: Endpoint, room: PromptRoom) -> bytes:
    """The bytes that come before the body in a job."""
    head = msgspec.msgpack.encode((endpoint.path, room))
    return _HEAD_SIZE.pack(len(head)) + head


def body_reader(endpoints: Iterable[Endpoint], served_name: str) -> Callable[[bytes], bytes]:
    """Make the function that turns a job into its result. It finds the endpoint of a job by its path."""
    by_path = {endpoint.path: endpoint for endpoint in endpoints}
    gc.disable()  # JSON has no cycles, and looking for them among a million values takes as long as reading these

    def work(job: bytes) -> bytes:
        [head_size] = _HEAD_SIZE.unpack_from(job)
        body_place = _HEAD_SIZE.size + head_size
        path, room = msgspec.msgpack.decode(job[_HEAD_SIZE.size : body_place], type=tuple[str, PromptRoom])
        try:
            request = by_path[path].read(job[body_place:], served_name)
            _check_lengths(request, room)
        except RequestError as error:
            return msgspec.msgpack.encode(_JobResult(error.refusal))
        prompts = msgspec.msgpack.encode(request.prompts)
        rest = msgspec.msgpack.encode(request.without_text())
        return msgspec.msgpack.encode(_JobResult(None, msgspec.Raw(rest), msgspec.Raw(prompts)))

    return work


def read_result(result: bytes) -> GenerationRequest:
    """Return the request that a job has read. Raises `RequestError` if the job refused the body."""
    read = msgspec.msgpack.decode(result, type=_JobResult)
    if read.refusal is not None:
        raise RequestError(read.refusal)
    request = msgspec.msgpack.decode(read.request, type=GenerationRequest)
    return replace(request, encoded_prompts=bytes(read.prompts))


def _check_lengths(request: GenerationRequest, room: PromptRoom) -> None:
    """Refuse a prompt that cannot fit, as the tokenizer process would, so that no other process reads megabytes."""
    if room.max_sequence_tokens is None:
        return
    for prompt in request.prompts:
        if isinstance(prompt, TokenPrompt):
            n_tokens = len(prompt.token_ids)
        elif isinstance(prompt, TextPrompt):
            n_tokens = room.length_bound.min_tokens_of(prompt.text)
        else:
            n_tokens = len(prompt.messages)  # each message has at least one token
            if n_tokens < room.max_sequence_tokens:
                n_tokens = room.length_bound.min_tokens_of("".join(message.content for message in prompt.messages))
        if n_tokens >= room.max_sequence_tokens:
            at_least = "" if isinstance(prompt, TokenPrompt) else "at least "
            refusal = prompt_too_long(f"{at_least}{n_tokens}", room.max_sequence_tokens)
            raise RequestError(msgspec.structs.replace(refusal, param=request.prompt_field))
