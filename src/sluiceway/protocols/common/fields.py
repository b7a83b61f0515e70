"""The fields that every request for tokens has, with their ranges, and `check`, which validates a body by its fields.

Types are strict: a boolean or a string is not a number, and 1.5 is not an integer. null is the same as no field at all.
Fields with an inner structure (`messages`, `prompt`, `logit_bias`, ...) have functions of their own, which raise errors
with the exact path.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model
from pydantic_core import ErrorDetails

from sluiceway.errors import RequestError, invalid
from sluiceway.ipc.messages.to_tokenizer import ChatMessage, Prompt, TextPrompt, TokenPrompt
from sluiceway.protocols.common.body import (
    MAX_NAMED,
    MAX_TOKEN_ID,
    join_path,
    listed,
    lower_each,
    require_filled_text,
    require_list,
    require_number,
    require_text,
    require_token_ids,
    shorten,
    together,
    wrong,
)
from sluiceway.ranges import CHOICES, LOGIT_BIAS, LOGPROBS, MAX_TOKENS, Range, SamplingParameter
from sluiceway.types import SamplingParams, Speculation

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024

GREEDY_BELOW = 1e-4
"""Temperatures below this act as 0: the likeliest token has all the probability, and the division would overflow."""

MAX_LOGPROBS = int(LOGPROBS.high)


def _lower_stop(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (_stop_text(value, "stop"),)
    items = require_list(value, "stop", expected="a string or a list of strings", max_items=MAX_STOPS)
    return lower_each(lambda one: _stop_text(one[1], f"stop[{one[0]}]"), enumerate(items))


def _stop_text(value: object, path: str) -> str:
    text = require_filled_text(value, path)
    if len(text) > MAX_STOP_CHARACTERS:
        raise invalid(f"`{path}` may have at most {MAX_STOP_CHARACTERS} characters, not {len(text)}.", path)
    return text


def _lower_stop_token_ids(value: object) -> tuple[int, ...]:
    items = require_list(value, "stop_token_ids", expected="a list of token ids", max_items=MAX_STOP_TOKEN_IDS)
    return require_token_ids(items, "stop_token_ids")


def _lower_logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, dict):
        raise wrong(value, "logit_bias", "an object of token ids and numbers")
    if len(value) > MAX_LOGIT_BIASES:
        raise invalid(f"`logit_bias` may have at most {MAX_LOGIT_BIASES} entries, not {len(value)}.", "logit_bias")
    biases = lower_each(_bias_of, value.items())
    n_of = Counter(token_id for token_id, _ in biases)
    repeated = [str(token_id) for token_id, n in n_of.items() if n > 1]  # "5" and "05"
    if repeated:
        raise invalid(f"`logit_bias` has more than one key for the token {listed(repeated)}.", "logit_bias")
    return biases


def _bias_of(item: tuple[str, object]) -> tuple[int, float]:
    key, bias = item
    return _bias_token_id(key), _bias(key, bias)


def _bias_token_id(key: str) -> int:
    if key.isascii() and key.isdigit() and len(key) <= len(str(MAX_TOKEN_ID)) and int(key) <= MAX_TOKEN_ID:
        return int(key)
    path = join_path("logit_bias", key)
    raise invalid(f"`logit_bias` has the key {shorten(key)}, which is no token id.", path)


def _bias(key: str, value: object) -> float:
    return require_number(value, join_path("logit_bias", key), low=LOGIT_BIAS.low, high=LOGIT_BIAS.high)


def _nullable(lower: Any) -> PlainValidator:
    return PlainValidator(lambda value: None if value is None else lower(value))


def within(bounds: Range) -> Any:
    """The field of a number in this range."""
    if bounds.is_above:
        return Field(gt=bounds.low, le=bounds.high)
    return Field(ge=bounds.low, le=bounds.high)


# For each row of the table of sampling parameters, the type of the field of a request.
_ANNOTATIONS: dict[str, Any] = {
    name: get_args(hint)[0] if note.bounds is None else Annotated[get_args(hint)[0], within(note.bounds)]
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
    for note in get_args(hint)[1:]
    if isinstance(note, SamplingParameter)
}
TokenCount = Annotated[int, within(MAX_TOKENS)]
LogprobCount = Annotated[int, within(LOGPROBS)]


class StrictFields(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, frozen=True)


if TYPE_CHECKING:

    class _Parameters(StrictFields):
        """A field for each row of the table of sampling parameters; these are the ones that this file names."""

        max_tokens: int | None
        min_tokens: int | None
        temperature: float | None
        top_k: int | None
else:
    _Parameters = create_model(
        "_Parameters",
        __base__=StrictFields,
        **{name: (annotation | None, None) for name, annotation in _ANNOTATIONS.items()},
    )


class SamplingFields(_Parameters):
    """The fields that say how tokens are chosen and where the answer ends."""

    without_limit: ClassVar[str] = "leave it out for no limit"
    """The advice in the error for a `max_tokens` of -1."""
    closed_objects: ClassVar[Mapping[str, type[BaseModel]]] = MappingProxyType({})
    """The fields that are objects without unknown keys."""

    logit_bias: Annotated[tuple[tuple[int, float], ...] | None, _nullable(_lower_logit_bias)] = None
    stop: Annotated[tuple[str, ...] | None, _nullable(_lower_stop)] = None
    stop_token_ids: Annotated[tuple[int, ...] | None, _nullable(_lower_stop_token_ids)] = None

    @property
    def token_limit(self) -> int | None:
        """The most tokens of one choice; None: up to the end of the context."""
        return self.max_tokens

    @property
    @abstractmethod
    def n_logprobs(self) -> int | None:
        """How many of the likeliest tokens are shown with each token; None: no logprobs at all."""

    def sampling(self, speculation: Speculation | None) -> SamplingParams:
        """The sampling parameters that the fields describe."""
        values = self.__dict__
        given = {name: value for name in _ANNOTATIONS if (value := values[name]) is not None}
        if self.temperature is not None and self.temperature < GREEDY_BELOW:
            given["temperature"] = 0.0
        if self.top_k == -1:
            given["top_k"] = 0
        given["max_tokens"] = self.token_limit
        return SamplingParams(
            **given,
            logit_bias=self.logit_bias or (),
            stop_token_ids=self.stop_token_ids or (),
            speculation=speculation,
            logprobs=self.n_logprobs,
        )

    def check_together(self) -> None:
        """Check the fields together. Raises `RequestError`."""
        if self.min_tokens and self.token_limit is not None and self.min_tokens > self.token_limit:
            raise wrong(self.min_tokens, "min_tokens", f"at most the token limit, {self.token_limit}")


# Where pydantic speaks of Python. Of ranges it speaks well.
_EXPECTED = {
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "model_type": "an object",
}

FieldsT = TypeVar("FieldsT", bound=SamplingFields)


def check(fields: type[FieldsT], body: Mapping[str, Any], hints: Mapping[str, str] = MappingProxyType({})) -> FieldsT:
    """Validate the fields of a body. Raises one `RequestError` for all that are wrong.

    `hints` has the advice for unknown fields, by their names.
    """
    _refuse_unknown(fields, body, "", hints)
    for name, options in fields.closed_objects.items():
        _refuse_unknown(options, body.get(name), name, {})
    try:
        checked = fields.model_validate(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        raise together([_refused(one, fields) for one in details]) from None
    checked.check_together()
    return checked


def _refuse_unknown(fields: type[BaseModel], body: object, path: str, hints: Mapping[str, str]) -> None:
    """Refuse unknown keys. Not by pydantic, which makes an object of each, and there may be thousands."""
    if not isinstance(body, Mapping):
        return
    if fields.model_config.get("extra") == "forbid":
        unknown = [key for key in body if key not in fields.model_fields]
        if unknown:
            are = "is not an option" if len(unknown) == 1 else "are not options"
            param = join_path(path, unknown[0])
            advice = "".join(f"; {hints[key]}" for key in unknown[:MAX_NAMED] if key in hints)
            raise invalid(f"{listed(unknown, path)} {are} of this server{advice}.", param, code="unsupported_parameter")


def _refused(error: ErrorDetails, fields: type[SamplingFields]) -> RequestError:
    param = ""
    for key in error["loc"]:
        param = join_path(param, key)
    if error["type"] == "missing":
        return invalid(f"`{param}` is required.", param, code="missing_required_parameter")
    expected = _EXPECTED.get(error["type"]) or error["msg"].removeprefix("Input should be ")
    if param in ("max_tokens", "max_completion_tokens") and isinstance(error["input"], int) and error["input"] < 0:
        expected += f" ({fields.without_limit})"
    return wrong(error["input"], param, expected)


# OpenAI renamed the system role for its newer models; chat templates know the old name.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_UNSERVED_ROLES = ("tool", "function")
_UNSERVED_FIELDS = ("tool_calls", "function_call", "audio", "images", "prefix", "partial")

_PART_TEXT = {"text": "text", "refusal": "refusal"}
"""For each type of part that is text, the field that holds it."""


def lower_messages(value: object, path: str = "messages") -> tuple[ChatMessage, ...]:
    """The messages in order, at least one."""
    items = require_list(value, path, expected="a list of messages")
    if not items:
        raise invalid(f"`{path}` must hold at least one message.", path)
    return tuple(_lower_message(item, f"{path}[{i}]") for i, item in enumerate(items))


def _lower_message(value: object, path: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise wrong(value, path, "an object with `role` and `content`")
    role = _lower_role(value.get("role"), f"{path}.role")
    for field in _UNSERVED_FIELDS:
        if value.get(field):
            raise invalid(
                f"`{path}.{field}` is not served by this server.", f"{path}.{field}", code="unsupported_parameter"
            )
    name = value.get("name")
    return ChatMessage(
        role=role,
        content=_lower_content(value, role, path),
        name=None if name is None else require_text(name, f"{path}.name"),
    )


def _lower_role(value: object, path: str) -> str:
    if value in _UNSERVED_ROLES:
        raise invalid(
            f"`{path}`: messages of the role {shorten(value)} are not served by this server.",
            path,
            code="unsupported_value",
        )
    role = _ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        raise wrong(value, path, "one of " + ", ".join(f'"{known}"' for known in _ROLES))
    return role


def _lower_content(message: dict[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return require_text(content, f"{path}.content")
    if content is None and role == "assistant" and message.get("refusal") is not None:
        return require_text(message["refusal"], f"{path}.refusal")  # an answer of OpenAI's, sent back as it came
    if "content" not in message:
        raise invalid(f"`{path}.content` is required.", f"{path}.content", code="missing_required_parameter")
    parts = require_list(content, f"{path}.content", expected="a string or a list of parts")
    if not parts:
        raise invalid(f"`{path}.content` must hold at least one part.", f"{path}.content")
    return "".join(lower_each(lambda one: _part_text(one[1], role, f"{path}.content[{one[0]}]"), enumerate(parts)))


def _part_text(part: object, role: str, path: str) -> str:
    if not isinstance(part, dict):
        raise wrong(part, path, "an object with `type` and `text`")
    kind = part.get("type")
    field = _PART_TEXT.get(kind) if isinstance(kind, str) else None
    if field is None or (field == "refusal" and role != "assistant"):
        raise invalid(
            f'`{path}.type` must be "text", not {shorten(kind)}: this server takes text only.',
            f"{path}.type",
            code="unsupported_value",
        )
    return require_text(part.get(field), f"{path}.{field}")


MAX_CHOICES = int(CHOICES.high)
"""The bound of prompts times `n`: each choice is a sequence, so this bounds what one request may start."""

_FORMS = "a string, a list of strings, a list of token ids or a list of such lists"


def lower_prompt(value: object) -> tuple[Prompt, ...]:
    """The prompts in order, at least one, none empty, at most `MAX_CHOICES`."""
    if isinstance(value, str):
        return (TextPrompt(require_filled_text(value, "prompt")),)
    items = require_list(value, "prompt", expected=_FORMS)
    if not items:
        raise invalid("`prompt` must not be an empty list.", "prompt")
    if type(items[0]) is int:
        return (TokenPrompt(require_token_ids(items, "prompt")),)
    if not isinstance(items[0], str | list):
        raise wrong(items[0], "prompt[0]", "a string, a token id or a list of token ids")
    require_list(items, "prompt", expected=_FORMS, max_items=MAX_CHOICES)
    lower = _lower_text if isinstance(items[0], str) else _lower_ids
    return lower_each(lambda one: lower(one[1], f"prompt[{one[0]}]"), enumerate(items))


def _lower_text(value: object, path: str) -> Prompt:
    return TextPrompt(require_filled_text(value, path))


def _lower_ids(value: object, path: str) -> Prompt:
    ids = require_list(value, path, expected="a list of token ids, as the first prompt is")
    if not ids:
        raise invalid(f"`{path}` must not be an empty list.", path)
    return TokenPrompt(require_token_ids(ids, path))
