"""How a caller in Python says what it wants of the tokens, held to the very fields that HTTP has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from pydantic import ConfigDict

from sluiceway import types
from sluiceway.errors import invalid
from sluiceway.protocols.common.body import wrong
from sluiceway.protocols.common.fields import LogprobCount, SamplingFields, check, within
from sluiceway.ranges import CHOICES
from sluiceway.types import Speculation, TokenId


class SamplingParams(types.SamplingParams, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen and where an answer ends; with the names, and the meaning, that vLLM's has.

    The values have the ranges of HTTP: what is outside raises `RequestError`, which names the field, here where it is
    made. None is the same as leaving a field out. `n` is how many answers each prompt gets. The defaults are those of a
    chat over HTTP, so `max_tokens` None goes to the end of the context.
    """

    n: int = 1
    stop: str | Sequence[str] | None = ()
    logit_bias: Mapping[TokenId, float] | tuple[tuple[TokenId, float], ...] = ()  # type: ignore[assignment]

    def __post_init__(self) -> None:
        lower_sampling(self)


class LoweredSampling(NamedTuple):
    """What is asked of the tokens of one call: of each sequence, how many sequences a prompt has, where a text ends."""

    sampling: types.SamplingParams
    n: int
    stop: tuple[str, ...]


def lower_sampling(params: types.SamplingParams | None, stop: str | Sequence[str] | None = ()) -> LoweredSampling:
    """Raises `RequestError` for the first value outside of its range. `stop` may be in either place, once."""
    if params is None:
        params = types.SamplingParams()
    if not isinstance(params, types.SamplingParams):
        raise wrong(params, "sampling_params", "SamplingParams")
    body: dict[str, Any] = msgspec.structs.asdict(params)
    if _is_given(stop):
        if _is_given(body.get("stop")):
            raise invalid("`stop` is given twice: in the sampling parameters, and as an argument of its own.", "stop")
        body["stop"] = stop
    for field in ("stop", "stop_token_ids"):
        if isinstance(body.get(field), tuple):
            body[field] = list(body[field])
    body["logit_bias"] = _object_of(params.logit_bias)
    fields = check(_PythonFields, body)
    return LoweredSampling(fields.sampling(fields.speculation), fields.n or 1, fields.stop or ())


def _is_given(stop: object) -> bool:
    """The empty string too: it is refused, as no list of stop strings may hold it."""
    return stop is not None and stop != () and stop != []


class _PythonFields(SamplingFields):
    """Closed: a field of `SamplingParams` that is missing here would be ignored in silence."""

    model_config = ConfigDict(extra="forbid")

    n: Annotated[int, within(CHOICES)] | None = None
    speculation: Speculation | None = None
    logprobs: LogprobCount | None = None

    @property
    def n_logprobs(self) -> int | None:
        return self.logprobs


def _object_of(biases: object) -> object:
    """The biases as JSON has them: an object whose keys are the ids. What is neither a mapping nor pairs stays."""
    if isinstance(biases, Mapping):
        return {str(token_id): bias for token_id, bias in biases.items()}
    if not isinstance(biases, tuple | list) or not all(isinstance(pair, tuple | list) for pair in biases):
        return biases
    if any(len(pair) != 2 for pair in biases):
        raise invalid("`logit_bias` must hold pairs of a token id and a number.", "logit_bias")
    found = {str(token_id): bias for token_id, bias in biases}
    if len(found) != len(biases):
        raise invalid("`logit_bias` names a token twice.", "logit_bias")
    return found
