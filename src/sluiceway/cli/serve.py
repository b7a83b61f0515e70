"""`sluiceway serve`: flags to a `ServeConfig`, checked before anything is fetched or started."""

from __future__ import annotations

import errno
import socket
from typing import Annotated, Literal

import msgspec
import typer

from sluiceway.cli.exits import command
from sluiceway.cli.options import DEFAULT, UNFETCHED, DtypeOption, KvCacheTokens, Model, ModelSource, Threads, option
from sluiceway.cli.pull import fetch
from sluiceway.config import ServeConfig
from sluiceway.errors import ConfigError
from sluiceway.store.catalog import DEFAULT_MODEL, Source

Host = Annotated[str, option("--host", "Address to listen on; 0.0.0.0 lets other machines in.")]
Port = Annotated[int, option("--port", "Port to listen on; 0: any free one.")]
MaxRunning = Annotated[int, option("--max-running", "Sequences computed in one step.")]
MaxWaiting = Annotated[int, option("--max-waiting", "Sequences that may wait; more are refused with 429.")]
MaxStepTokens = Annotated[int, option("--max-step-tokens", "Tokens computed in one step; at least --max-running.")]
MaxModelLen = Annotated[
    int | None, option("--max-model-len", "Longest prompt and answer together, in tokens; without it, the model's own.")
]
DrainTimeout = Annotated[
    float, option("--drain-timeout", "Seconds that running answers get to finish when the server is stopped.")
]
HeartbeatTimeout = Annotated[
    float, option("--heartbeat-timeout", "Seconds of silence of a process after which the server is not ready.")
]
KeepAlive = Annotated[float, option("--keep-alive", "Seconds that an idle connection is kept.")]
MaxBodyBytes = Annotated[int, option("--max-body-bytes", "Largest request body, bytes.")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], option("--log-level", "The least that is logged.")]
LogFormat = Annotated[Literal["text", "json"], option("--log-format", "How a log line is written.")]
ServedModelName = Annotated[
    str | None, option("--served-model-name", "The name that clients use; without it, the model's own.")
]


@command
def serve(
    model: Model = DEFAULT_MODEL,
    host: Host = DEFAULT.host,
    port: Port = DEFAULT.port,
    served_model_name: ServedModelName = None,
    dtype: DtypeOption = DEFAULT.dtype,
    max_running: MaxRunning = DEFAULT.max_running,
    max_waiting: MaxWaiting = DEFAULT.max_waiting,
    max_step_tokens: MaxStepTokens = DEFAULT.max_step_tokens,
    max_model_len: MaxModelLen = DEFAULT.max_model_len,
    kv_cache_tokens: KvCacheTokens = DEFAULT.kv_cache_tokens,
    drain_timeout: DrainTimeout = DEFAULT.drain_timeout_s,
    heartbeat_timeout: HeartbeatTimeout = DEFAULT.heartbeat_timeout_s,
    keep_alive: KeepAlive = DEFAULT.keep_alive_s,
    max_body_bytes: MaxBodyBytes = DEFAULT.max_body_bytes,
    threads: Threads = DEFAULT.threads,
    log_level: LogLevel = DEFAULT.log_level,
    log_format: LogFormat = DEFAULT.log_format,
    source: ModelSource = Source.AUTO,
) -> None:
    """Serve a model over HTTP, fetching it first if it is not here."""
    config = ServeConfig(
        model=UNFETCHED, host=host, port=port, dtype=dtype, max_running=max_running, max_waiting=max_waiting,
        max_step_tokens=max_step_tokens, max_model_len=max_model_len, kv_cache_tokens=kv_cache_tokens,
        drain_timeout_s=drain_timeout, heartbeat_timeout_s=heartbeat_timeout, keep_alive_s=keep_alive,
        max_body_bytes=max_body_bytes, threads=threads, log_level=log_level, log_format=log_format,
    )  # fmt: skip
    require_free(host, port)
    files = fetch(model, source)
    named = msgspec.structs.replace(files, name=served_model_name or files.name)

    from sluiceway.procs.supervisor import serve as supervise

    raise typer.Exit(supervise(msgspec.structs.replace(config, model=named)))


def require_free(host: str, port: int) -> None:
    """Says early, in a sentence, that the address cannot be had; the server's own bind is what decides."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror:
        raise ConfigError("host", f"{host!r} is neither an address nor a name that this machine knows") from None
    except OSError as fault:
        raise _refusal(fault, host, port) from None


def _refusal(fault: OSError, host: str, port: int) -> ConfigError:
    match fault.errno:
        case errno.EADDRINUSE:
            return ConfigError("port", f"{port} on {host} is in use; choose another one, or 0 for any free one")
        case errno.EACCES:
            return ConfigError("port", f"{port} needs administrator rights; choose one above 1023")
        case errno.EADDRNOTAVAIL:
            return ConfigError("host", f"{host} is not an address of this machine; 127.0.0.1 and 0.0.0.0 always are")
        case _:
            return ConfigError("host", f"cannot listen on {host}:{port}: {fault.strerror}")
