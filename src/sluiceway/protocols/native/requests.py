"""Requests of the native protocol, `/v1/stream` and `/v1/generate`: their fields, and how a body becomes a request.

A request says how tokens are sampled, as in the other protocols, and how the stream behaves.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

from pydantic import ConfigDict, PlainValidator

from sluiceway.errors import invalid
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, ChatPrompt, Prompt
from sluiceway.protocols.common.body import read_object, require_text, wrong
from sluiceway.protocols.common.fields import LogprobCount, SamplingFields, check, lower_messages, lower_prompt
from sluiceway.protocols.common.generation import Endpoint, GenerationRequest
from sluiceway.protocols.common.other_names import SERVED_AS
from sluiceway.protocols.common.stream_options import StreamOptionFields
from sluiceway.protocols.native.framer import NativeFramer
from sluiceway.types import Speculation


def _lower_one_prompt(value: object) -> Prompt | None:
    if value is None:
        return None
    if isinstance(value, list) and value and type(value[0]) is not int:
        raise wrong(value, "prompt", "a string or a list of token ids")
    (prompt,) = lower_prompt(value)
    return prompt


class NativeFields(SamplingFields, StreamOptionFields):
    """The fields of a native request. Unknown ones are refused, since no other server has this protocol."""

    model_config = ConfigDict(extra="forbid")

    model: Annotated[
        str | None, PlainValidator(lambda value: None if value is None else require_text(value, "model"))
    ] = None
    prompt: Annotated[Prompt | None, PlainValidator(_lower_one_prompt)] = None
    messages: Annotated[
        tuple[ChatMessage, ...] | None, PlainValidator(lambda value: None if value is None else lower_messages(value))
    ] = None
    speculation: Speculation | None = None
    logprobs: LogprobCount | None = None

    @property
    def n_logprobs(self) -> int | None:
        return self.logprobs

    def check_together(self) -> None:
        super().check_together()
        if self.prompt is None and self.messages is None:
            raise invalid("`prompt` or `messages` is required.", "prompt", code="missing_required_parameter")
        if self.prompt is not None and self.messages is not None:
            raise invalid("`messages` may not be given beside `prompt`.", "messages")

    def request(self, served_name: str, *, is_streamed: bool) -> GenerationRequest:
        """The request that the fields describe. Raises `RequestError` for an option that only a stream can have."""
        self.check_options("", is_streamed=is_streamed)
        prompt = ChatPrompt(self.messages) if self.messages is not None else self.prompt
        assert prompt is not None
        return GenerationRequest(
            model=served_name if self.model is None else self.model,
            prompts=(prompt,),
            n=1,
            sampling=self.sampling(self.speculation),
            stop=self.stop or (),
            stream=is_streamed,
            stream_options=self.options,
        )


_OTHER_NAMES = {**SERVED_AS, "max_completion_tokens": "max_tokens", "top_logprobs": "logprobs"}
HINTS = MappingProxyType(
    {
        "stream": "for a stream use `/v1/stream`, for one object `/v1/generate`",
        "sluiceway": "the fields of `sluiceway` lie at the top level here",
    }
    | {
        name: f"the field for `{name}` is `{served}`"
        for name, served in _OTHER_NAMES.items()
        if served in NativeFields.model_fields
    }
)
"""What to write instead of a field that other protocols have."""


def parse_native(body: bytes, served_name: str, *, is_streamed: bool) -> GenerationRequest:
    """Read a request. One that names no model asks for `served_name`. Raises `RequestError`, always 400."""
    return check(NativeFields, read_object(body), HINTS).request(served_name, is_streamed=is_streamed)


STREAM = Endpoint(
    path="/v1/stream",
    id_prefix="stream",
    parser=lambda body, served_name: parse_native(body, served_name, is_streamed=True),
    framer=NativeFramer,
)
GENERATE = Endpoint(
    path="/v1/generate",
    id_prefix="stream",
    parser=lambda body, served_name: parse_native(body, served_name, is_streamed=False),
    framer=NativeFramer,
)
