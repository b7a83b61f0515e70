"""`sluiceway serve`: flags become a `ServeConfig`, which is checked before anything is fetched or started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import typer

from sluiceway.cli.exits import command
from sluiceway.cli.options import UNFETCHED, Model, ModelSource, option, parameters_of, with_parameters
from sluiceway.cli.pull import fetch
from sluiceway.config import ServeConfig, StreamsConfig
from sluiceway.errors import ConfigError, RequestError
from sluiceway.response.override import policy_from_header
from sluiceway.response.policy import DEFAULT as DEFAULT_POLICY
from sluiceway.response.policy import POLICIES
from sluiceway.store.catalog import DEFAULT_MODEL, Source

ServedModelName = Annotated[
    str | None, option("--served-model-name", "The model's name in the API; without it, the model's own name.")
]


def serve_command(config_type: type[ServeConfig]) -> Callable[..., None]:
    """Make the command `serve`, which has a flag for each field of the configuration that has a `Flag`."""

    @command
    def serve(
        model: Model = DEFAULT_MODEL,
        served_model_name: ServedModelName = None,
        source: ModelSource = Source.AUTO,
        **settings: Any,
    ) -> None:
        """Serve a model over HTTP, fetching it first if it is not on this machine."""
        config = _config_of(config_type, settings)

        from sluiceway.runtime.listener import bind

        with bind(config.host, config.port) as listener:  # before anything is fetched: the address may be taken
            files = fetch(model, source)
            named = msgspec.structs.replace(files, name=served_model_name or files.name)

            from sluiceway.supervisor.supervisor import serve as supervise

            raise typer.Exit(supervise(msgspec.structs.replace(config, model=named), listener))

    with_parameters(serve, parameters_of(config_type), after="model")
    return serve


def _config_of(config_type: type[ServeConfig], settings: dict[str, Any]) -> ServeConfig:
    streams = _with_policy(settings.pop("slow_client"))
    of_streams = {name: settings.pop(name) for name in StreamsConfig.__struct_fields__ if name in settings}
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
    }
    return config_type(model=UNFETCHED, streams=msgspec.structs.replace(streams, **of_streams), **values)


def _with_policy(text: str) -> StreamsConfig:
    """The policy, and those of its marks and times that differ from its defaults."""
    try:
        policy = policy_from_header(text, DEFAULT_POLICY, "policy")
    except RequestError as error:
        raise ConfigError("slow_client", error.refusal.message) from None
    defaults = msgspec.structs.asdict(POLICIES[policy.name])
    changed = {field: value for field, value in msgspec.structs.asdict(policy).items() if value != defaults[field]}
    return StreamsConfig(slow_client=policy.name.value, **changed)


serve = serve_command(ServeConfig)
