"""Requests for chats and completions: their fields, and how a body becomes a `GenerationRequest`.

Unknown fields are ignored, except in the object `sluiceway`; `unserved` refuses those that other servers have.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, PlainValidator

from sluiceway.errors import invalid
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt
from sluiceway.protocols.common.body import read_object, require_text, shorten
from sluiceway.protocols.common.fields import (
    MAX_CHOICES,
    LogprobCount,
    SamplingFields,
    StrictFields,
    TokenCount,
    check,
    lower_messages,
    lower_prompt,
    within,
)
from sluiceway.protocols.common.generation import Endpoint, GenerationRequest
from sluiceway.protocols.common.stream_options import StreamOptionFields, StreamOptions
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.framer import ChatFramer, CompletionFramer
from sluiceway.ranges import CHOICES, COMPLETION_LOGPROBS
from sluiceway.types import Speculation

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; chat has none."""

MAX_COMPLETION_LOGPROBS = int(COMPLETION_LOGPROBS.high)


class UsageOptions(StrictFields):
    """Padding (`include_obfuscation`) may be left out by a server; running counts are not served."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class SluicewayOptions(StreamOptionFields):
    """What no other server has."""

    speculation: Speculation | None = None
    progress: Literal["comments"] | None = None  # SDKs take every event of such a stream for a chunk


class GeneratingFields(SamplingFields):
    """The fields that chat and completions share."""

    closed_objects: ClassVar[Mapping[str, type[BaseModel]]] = MappingProxyType({"sluiceway": SluicewayOptions})

    model: Annotated[str, PlainValidator(lambda value: require_text(value, "model"))]
    n: Annotated[int, within(CHOICES)] | None = None
    stream: bool | None = None
    stream_options: UsageOptions | None = None
    return_token_ids: bool | None = None
    sluiceway: SluicewayOptions | None = None

    def request(self, prompts: tuple[Prompt, ...]) -> GenerationRequest:
        """The request that the fields describe."""
        return GenerationRequest(
            model=self.model,
            prompts=prompts,
            n=self.n or 1,
            sampling=self.sampling(self.sluiceway.speculation if self.sluiceway else None),
            stop=self.stop or (),
            stream=bool(self.stream),
            stream_options=self.sluiceway.options if self.sluiceway else StreamOptions(),
            include_usage=bool(self.stream_options and self.stream_options.include_usage),
            return_token_ids=bool(self.return_token_ids),
        )

    def check_together(self) -> None:
        super().check_together()
        if self.sluiceway:
            self.sluiceway.check_options("sluiceway.", is_streamed=bool(self.stream))
        if self.stream_options is None:
            return
        if not self.stream:
            raise invalid("`stream_options` may only be given with `stream: true`.", "stream_options")
        if self.stream_options.continuous_usage_stats:
            param = "stream_options.continuous_usage_stats"
            raise invalid(f"`{param}` is not served by this server.", param, code="unsupported_parameter")


class ChatFields(GeneratingFields):
    """The served fields of POST /v1/chat/completions."""

    messages: Annotated[tuple[ChatMessage, ...], PlainValidator(lower_messages)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None

    @property
    def token_limit(self) -> int | None:
        return super().token_limit if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def n_logprobs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    def check_together(self) -> None:
        super().check_together()
        if self.top_logprobs and not self.logprobs:
            raise invalid("`top_logprobs` may only be given with `logprobs: true`.", "top_logprobs")


class CompletionFields(GeneratingFields):
    """The served fields of POST /v1/completions."""

    without_limit: ClassVar[str] = "give a large number for no limit"

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(lower_prompt)]
    best_of: int | None = None
    logprobs: Annotated[int, within(COMPLETION_LOGPROBS)] | None = None

    @property
    def token_limit(self) -> int:
        return COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        return self.logprobs

    def check_together(self) -> None:
        super().check_together()
        n = self.n or 1
        if self.best_of is not None and self.best_of != n:
            raise invalid(
                f"`best_of` is not served by this server, except equal to `n` ({n}); it was {shorten(self.best_of)}.",
                "best_of",
                code="unsupported_parameter",
            )
        if len(self.prompt) * n > MAX_CHOICES:
            raise invalid(
                f"`prompt` times `n` may give at most {MAX_CHOICES} choices, not {len(self.prompt)} times {n}.", "n"
            )


def parse_chat(body: bytes) -> GenerationRequest:
    """Raises `RequestError`, always with status 400. Does not check whether the model exists."""
    values = read_object(body)
    fields = check(ChatFields, values)
    unserved.refuse_unserved(values, unserved.CHAT)
    unserved.refuse_misplaced(values, SluicewayOptions.model_fields)
    return fields.request((ChatPrompt(fields.messages),))


CHAT = Endpoint(
    path="/v1/chat/completions",
    id_prefix="chatcmpl",
    parser=lambda body, _served_name: parse_chat(body),
    framer=ChatFramer,
)


def parse_completion(body: bytes) -> GenerationRequest:
    """Raises `RequestError`, always with status 400. Does not check whether the model exists."""
    values = read_object(body)
    fields = check(CompletionFields, values)
    unserved.refuse_unserved(values, unserved.COMPLETIONS)
    unserved.refuse_misplaced(values, SluicewayOptions.model_fields)
    return fields.request(fields.prompt)


COMPLETIONS = Endpoint(
    path="/v1/completions",
    id_prefix="cmpl",
    parser=lambda body, _served_name: parse_completion(body),
    framer=CompletionFramer,
)
