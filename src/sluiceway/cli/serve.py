"""`sluiceway serve`: flags to a `ServeConfig`, checked before anything is fetched or started."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sluiceway.cli.exits import command
from sluiceway.cli.options import DEFAULT, UNFETCHED, DtypeOption, KvCacheTokens, Model, ModelSource, Threads, option
from sluiceway.cli.pull import fetch
from sluiceway.config import LogFormat, LogLevel, ServeConfig, StreamsConfig
from sluiceway.errors import ConfigError, RequestError
from sluiceway.response.override import policy_from_header
from sluiceway.response.policy import DEFAULT as DEFAULT_POLICY
from sluiceway.response.policy import POLICIES
from sluiceway.store.catalog import DEFAULT_MODEL, Source
from sluiceway.types import Speculation

Host = Annotated[str, option("--host", "Address to listen on; 0.0.0.0 lets other machines in.")]
Port = Annotated[int, option("--port", "Port to listen on; 0: any free one.")]
AllowedHosts = Annotated[
    list[str],
    option(
        "--allowed-host",
        "A host, perhaps with a port, under which clients reach this server, as behind a proxy; may be given several "
        "times (in the variable: split at spaces). On a loopback address the server answers to loopback names alone "
        "without it. It lets in no page of another origin: no CORS headers are sent. *: any host.",
    ),
]
MaxRunning = Annotated[int, option("--max-running", "Sequences computed in one step.")]
MaxWaiting = Annotated[int, option("--max-waiting", "Sequences that may wait; more are refused with 503.")]
MaxStepTokens = Annotated[int, option("--max-step-tokens", "Tokens computed in one step; at least --max-running.")]
StepTarget = Annotated[
    float, option("--step-target", "Seconds that a step should take when a prompt is computed beside other requests.")
]
SpeculationOption = Annotated[
    Speculation,
    option("--speculation", "Guess next tokens from earlier ones, ngram, where a request does not say; same answers."),
]
MaxDraftTokens = Annotated[
    int, option("--max-draft-tokens", "Tokens that speculation guesses for one sequence in one step.")
]
MaxModelLen = Annotated[
    int | None, option("--max-model-len", "Longest prompt and answer together, in tokens; without it, the model's own.")
]
DrainTimeout = Annotated[
    float, option("--drain-timeout", "Seconds that running answers get to finish when the server is stopped.")
]
HeartbeatTimeout = Annotated[
    float, option("--heartbeat-timeout", "Seconds of silence of a process after which the server is not ready.")
]
RestartHungAfter = Annotated[
    float,
    option(
        "--restart-hung-after",
        "Seconds of silence of a process after which it is killed and started again; ten times that for a step.",
    ),
]
KeepAlive = Annotated[float, option("--keep-alive", "Seconds that an idle connection is kept.")]
MaxBodyBytes = Annotated[int, option("--max-body-bytes", "Largest request body, bytes.")]
SlowClient = Annotated[
    str,
    option(
        "--slow-client",
        "What becomes of a reader that does not keep up: unbounded, pause, drop or pause-park-drop, with marks and "
        "times where they are to differ, 'drop; drop_after_s=10'.",
    ),
]
SseKeepAlive = Annotated[
    float, option("--sse-keep-alive", "Seconds of silence after which a stream gets a comment; 0: never.")
]
MaxStreamBytes = Annotated[
    int, option("--max-stream-bytes", "What all streams together may hold of unwritten and replayable events, bytes.")
]
ReplayBytes = Annotated[
    int, option("--replay-bytes", "What one resumable stream keeps of the events that its readers have got.")
]
ReplayTtl = Annotated[float, option("--replay-ttl", "Seconds that a resumable stream is kept after its end.")]
DetachGrace = Annotated[
    float,
    option("--detach-grace", "Seconds that a detached stream waits for a reader, where its request does not say."),
]
DetachAhead = Annotated[int, option("--detach-ahead-tokens", "Tokens that a stream may generate without a reader.")]
HistoryTtl = Annotated[
    float, option("--history-ttl", "Seconds for which one can ask what became of a stream that has ended.")
]
UnsentBytes = Annotated[
    int,
    option(
        "--unsent-bytes",
        "What the kernel may hold of a connection beyond what is on its way; little shows a slow reader early. "
        "0: as much as it likes.",
    ),
]
FakeStep = Annotated[float, option("--fake-step", "Seconds that a step of the model `fake` takes.")]
LogLevelOption = Annotated[LogLevel, option("--log-level", "The least that is logged.")]
LogFormatOption = Annotated[LogFormat, option("--log-format", "How a log line is written.")]
ServedModelName = Annotated[
    str | None, option("--served-model-name", "The name that clients use; without it, the model's own.")
]


@command
def serve(
    model: Model = DEFAULT_MODEL,
    host: Host = DEFAULT.host,
    port: Port = DEFAULT.port,
    allowed_host: AllowedHosts = [],  # noqa: B006 (typer makes a new one)
    served_model_name: ServedModelName = None,
    dtype: DtypeOption = DEFAULT.dtype,
    max_running: MaxRunning = DEFAULT.max_running,
    max_waiting: MaxWaiting = DEFAULT.max_waiting,
    max_step_tokens: MaxStepTokens = DEFAULT.max_step_tokens,
    step_target: StepTarget = DEFAULT.step_target_s,
    speculation: SpeculationOption = DEFAULT.speculation,
    max_draft_tokens: MaxDraftTokens = DEFAULT.max_draft_tokens,
    max_model_len: MaxModelLen = DEFAULT.max_model_len,
    kv_cache_tokens: KvCacheTokens = DEFAULT.kv_cache_tokens,
    drain_timeout: DrainTimeout = DEFAULT.drain_timeout_s,
    heartbeat_timeout: HeartbeatTimeout = DEFAULT.heartbeat_timeout_s,
    restart_hung_after: RestartHungAfter = DEFAULT.restart_hung_after_s,
    keep_alive: KeepAlive = DEFAULT.keep_alive_s,
    max_body_bytes: MaxBodyBytes = DEFAULT.max_body_bytes,
    slow_client: SlowClient = DEFAULT.streams.slow_client,
    sse_keep_alive: SseKeepAlive = DEFAULT.streams.sse_keep_alive_s,
    max_stream_bytes: MaxStreamBytes = DEFAULT.streams.max_stream_bytes,
    replay_bytes: ReplayBytes = DEFAULT.streams.replay_bytes,
    replay_ttl: ReplayTtl = DEFAULT.streams.replay_ttl_s,
    detach_grace: DetachGrace = DEFAULT.streams.detach_grace_s,
    detach_ahead_tokens: DetachAhead = DEFAULT.streams.detach_ahead_tokens,
    history_ttl: HistoryTtl = DEFAULT.streams.history_ttl_s,
    unsent_bytes: UnsentBytes = DEFAULT.streams.unsent_bytes,
    threads: Threads = DEFAULT.threads,
    fake_step: FakeStep = DEFAULT.fake_step_s,
    log_level: LogLevelOption = DEFAULT.log_level,
    log_format: LogFormatOption = DEFAULT.log_format,
    source: ModelSource = Source.AUTO,
) -> None:
    """Serve a model over HTTP, fetching it first if it is not here."""
    streams = msgspec.structs.replace(
        _with_policy(slow_client), sse_keep_alive_s=sse_keep_alive, max_stream_bytes=max_stream_bytes,
        replay_bytes=replay_bytes, replay_ttl_s=replay_ttl, detach_grace_s=detach_grace,
        detach_ahead_tokens=detach_ahead_tokens, history_ttl_s=history_ttl, unsent_bytes=unsent_bytes,
    )  # fmt: skip
    config = ServeConfig(
        model=UNFETCHED, host=host, port=port, allowed_host=tuple(allowed_host), dtype=dtype,
        max_running=max_running, max_waiting=max_waiting,
        max_step_tokens=max_step_tokens, step_target_s=step_target, speculation=speculation,
        max_draft_tokens=max_draft_tokens, max_model_len=max_model_len,
        kv_cache_tokens=kv_cache_tokens, drain_timeout_s=drain_timeout, heartbeat_timeout_s=heartbeat_timeout,
        restart_hung_after_s=restart_hung_after, keep_alive_s=keep_alive,
        max_body_bytes=max_body_bytes, streams=streams, threads=threads,
        fake_step_s=fake_step, log_level=log_level, log_format=log_format,
    )  # fmt: skip

    from sluiceway.runtime.listener import bind

    with bind(host, port) as listener:  # says that the address cannot be had before anything is fetched
        files = fetch(model, source)
        named = msgspec.structs.replace(files, name=served_model_name or files.name)

        from sluiceway.supervisor.supervisor import serve as supervise

        raise typer.Exit(supervise(msgspec.structs.replace(config, model=named), listener))


def _with_policy(text: str) -> StreamsConfig:
    """The policy by name, and those of its marks and times that are not the usual ones."""
    try:
        policy = policy_from_header(text, DEFAULT_POLICY, "policy")
    except RequestError as error:
        raise ConfigError("slow_client", error.refusal.message) from None
    usual = msgspec.structs.asdict(POLICIES[policy.name])
    changed = {field: value for field, value in msgspec.structs.asdict(policy).items() if value != usual[field]}
    return StreamsConfig(slow_client=policy.name.value, **changed)
