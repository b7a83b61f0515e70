"""Configuration: frozen values, checked once where they are made, then trusted everywhere."""

from __future__ import annotations

import enum
import functools
import re
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.ranges import Range
from sluiceway.types import Speculation

BLOCK_TOKENS = 16
"""Tokens of one block of the paged KV cache."""

HOST = re.compile(
    r"(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f.]*:[0-9a-f:.]*\])"
    r"(?::(?:[0-5]?[0-9]{0,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?",
    re.ASCII | re.IGNORECASE,
)
"""A host name or an address, with or without a port: https://www.rfc-editor.org/rfc/rfc9110#section-7.2"""

Dtype = Literal["auto", "float32", "bfloat16", "int8"]
SlowClient = Literal["unbounded", "pause", "drop", "pause-park-drop"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class ModelKind(str, enum.Enum):
    """How a model is stored on disk."""

    DIRECTORY = "directory"
    GGUF = "gguf"
    FAKE = "fake"
    """No files: the byte tokenizer and the fake runner, for tests and for the lab."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine. `path` is a directory (safetensors, tokenizer.json, config.json) or a GGUF file."""

    kind: ModelKind
    path: str
    name: str
    """The name under which it is served."""


class Flag(msgspec.Struct, frozen=True):
    """Makes a field of `ServeConfig` or `StreamsConfig` a flag of `sluiceway serve`.

    The command line and `docs/cli.md` are made from it. The field `keep_alive_s` becomes the flag `--keep-alive` and
    the variable `SLUICEWAY_KEEP_ALIVE`. The flag has the default and the type of the field.
    """

    help: str
    value_type: Any = None
    """The type of the flag's value, if it is not that of the field."""


_AT_LEAST_ONE = (
    "n_blocks", "max_model_len", "vocab_size", "block_tokens", "max_running", "max_step_tokens", "max_draft_tokens",
)  # fmt: skip


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler must know: its limits, and facts of the model.

    A step computes at most `max_step_tokens` tokens. When several sequences share a step, a prompt is split into chunks
    so that the step takes about `step_target_s`: this bounds how long the others wait for their next token. Sequences
    that do not set `speculation` use the one here, with at most `max_draft_tokens` drafts for each sequence and step.
    """

    n_blocks: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    block_tokens: int = BLOCK_TOKENS
    max_running: int = 64
    max_waiting: int = 512
    max_step_tokens: int = 512
    step_target_s: float = 0.05
    speculation: Speculation = "off"
    max_draft_tokens: int = 8

    def __post_init__(self) -> None:
        if not self.step_target_s > 0.0:
            raise ConfigError("step_target_s", f"must be above 0, not {self.step_target_s}")
        for field in _AT_LEAST_ONE:
            if getattr(self, field) < 1:
                raise ConfigError(field, f"must be at least 1, not {getattr(self, field)}")
        if self.max_waiting < 0:
            raise ConfigError("max_waiting", f"must be at least 0, not {self.max_waiting}")
        if self.max_step_tokens < self.max_running:
            raise ConfigError(
                "max_step_tokens",
                f"must be at least max_running ({self.max_running}), so that every row gets its token",
            )

    @property
    def max_sequence_tokens(self) -> int:
        """The most tokens that prompt and answer may have together: the context, or the whole cache if that is less."""
        return min(self.max_model_len, self.n_blocks * self.block_tokens)


class StreamsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How responses are written, buffered and kept, where a request does not say.

    The marks and times of `slow_client` (see `response.policy`) are None where the defaults of that policy hold.
    """

    slow_client: Annotated[
        SlowClient,
        Flag(
            "What happens to a reader that does not keep up: unbounded, pause, drop or pause-park-drop. Marks and "
            "times other than the defaults follow, as in 'drop; drop_after_s=10'.",
            value_type=str,
        ),
    ] = "pause-park-drop"
    low_bytes: int | None = None
    high_bytes: int | None = None
    limit_bytes: int | None = None
    low_events: int | None = None
    high_events: int | None = None
    limit_events: int | None = None
    park_after_s: float | None = None
    drop_after_s: float | None = None
    stall_timeout_s: float | None = None
    sse_keep_alive_s: Annotated[
        float, Range(0, 86_400), Flag("Seconds of silence after which a stream gets a comment; 0: never.")
    ] = 15.0
    max_stream_bytes: Annotated[
        int,
        Range(1, 1 << 40),
        Flag("Bytes of unwritten and replayable events that all streams together may hold."),
    ] = 256 * 1024 * 1024
    """Whole answers count in full."""
    max_stream_events: Annotated[int, Range(1, 1 << 40)] = 1_000_000
    replay_bytes: Annotated[
        int,
        Range(1, 1 << 40),
        Flag("Bytes of events that one resumable stream keeps after its readers have got them."),
    ] = 512 * 1024
    replay_events: Annotated[int, Range(1, 1_000_000)] = 4096
    replay_ttl_s: Annotated[float, Range(0, 86_400), Flag("Seconds that a resumable stream is kept after its end.")] = (
        60.0
    )
    kept_streams: Annotated[int, Range(1, 1_000_000)] = 1024
    """How many ended streams without readers are kept. Beyond it, the caller with the most loses its oldest."""
    detach_grace_s: Annotated[
        float,
        Range(0, 86_400),
        Flag("Seconds that a detached stream waits for a reader, where its request does not say."),
    ] = 30.0
    detach_ahead_tokens: Annotated[
        int, Range(0, 1_000_000), Flag("Tokens that a stream may generate without a reader.")
    ] = 256
    history_records: Annotated[int, Range(1, 1_000_000)] = 16_384
    """How many ended streams are remembered with the reason why they ended."""
    history_ttl_s: Annotated[
        float, Range(1, 86_400), Flag("Seconds for which the server remembers why a stream has ended.")
    ] = 600.0
    idempotency_keys: Annotated[int, Range(1, 1_000_000)] = 16_384
    """How many keys are remembered. A caller may have at most as many as are still free."""
    idempotency_ttl_s: Annotated[float, Range(1, 86_400)] = 60.0
    """How long the key of a response is remembered after its end."""
    unsent_bytes: Annotated[
        int,
        Range(0, 1 << 30),
        Flag(
            "Bytes that the kernel may hold of a connection beyond those that are on their way. A small number shows a "
            "slow reader early. 0: no limit."
        ),
    ] = 4 * 1024
    write_bytes: Annotated[int, Range(0, 1 << 30)] = 0
    """How many bytes may wait above the kernel before a connection counts as full."""

    def __post_init__(self) -> None:
        _check_ranges(self)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of `sluiceway serve`; every process gets the whole of it."""

    model: ModelFiles
    host: Annotated[str, Flag("Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1"
    port: Annotated[int, Range(0, 65_535), Flag("Port to listen on; 0: any free one.")] = 8000
    allowed_host: Annotated[
        tuple[str, ...],
        Flag(
            "A host, with or without a port, by which clients may address this server, for example behind a proxy; may "
            "be given several times (in the variable: separated by spaces). Without it, a server on a loopback address "
            "answers to loopback names only. It does not let pages of another origin in: no CORS headers are sent. *: "
            "any host.",
        ),
    ] = ()
    dtype: Annotated[
        Dtype,
        Flag(
            "Number format of the weights. auto: bfloat16 if the hardware multiplies it, else float32. int8: CPU only, "
            "faster with few streams, less exact."
        ),
    ] = "auto"
    max_running: Annotated[int, Range(1, 4096), Flag("Sequences computed in one step.")] = 64
    max_waiting: Annotated[int, Range(0, 1_000_000), Flag("Sequences that may wait; more are refused with 503.")] = 512
    max_step_tokens: Annotated[int, Flag("Tokens computed in one step; at least --max-running.")] = 512
    step_target_s: Annotated[
        float,
        Range(0.001, 60),
        Flag("Seconds that a step should take when it computes part of a prompt together with other requests."),
    ] = 0.05
    speculation: Annotated[
        Speculation,
        Flag(
            "Whether to guess next tokens, where a request does not say. ngram: from earlier tokens of the sequence. "
            "The answers stay the same."
        ),
    ] = "off"
    max_draft_tokens: Annotated[
        int, Range(1, 64), Flag("Tokens that speculation guesses for one sequence in one step.")
    ] = 8
    max_model_len: Annotated[
        int | None,
        Range(2, 1 << 32),
        Flag("Most tokens of prompt and answer together; without it, the model's own limit."),
    ] = None
    kv_cache_tokens: Annotated[
        int, Range(BLOCK_TOKENS, 1 << 32), Flag("Tokens that the KV cache holds, for all requests together.")
    ] = 32_768
    drain_timeout_s: Annotated[
        float, Range(0, 86_400), Flag("Seconds that running answers get to finish when the server is stopped.")
    ] = 30.0
    heartbeat_timeout_s: Annotated[
        float, Range(0.5, 3_600), Flag("Seconds of silence of a process after which the server is not ready.")
    ] = 10.0
    restart_hung_after_s: Annotated[
        float,
        Range(1, 86_400),
        Flag(
            "Seconds of silence of a process after which it is killed and started again. A step may take 10 times that."
        ),
    ] = 60.0
    keep_alive_s: Annotated[float, Range(1, 86_400), Flag("Seconds that an idle connection is kept.")] = 120.0
    """Longer than the connection pools of common clients keep theirs."""
    max_body_bytes: Annotated[int, Range(1024, 1 << 32), Flag("Largest request body, bytes.")] = 16 * 1024 * 1024
    streams: StreamsConfig = msgspec.field(default_factory=StreamsConfig)
    threads: Annotated[int, Range(0, 1024), Flag("Compute threads of the engine; 0: one per core.")] = 0
    fake_step_s: Annotated[float, Range(0, 60), Flag("Seconds that a step of the model `fake` takes.")] = 0.0
    log_level: Annotated[LogLevel, Flag("The lowest level that is logged.")] = "info"
    log_format: Annotated[LogFormat, Flag("The form of a log line.")] = "text"

    def __post_init__(self) -> None:
        for name in self.allowed_host:
            if name.lower() == "null":
                raise ConfigError("allowed_host", "must be a host; `null` is the origin of pages that have none")
            if name != "*" and not HOST.fullmatch(name):
                raise ConfigError(
                    "allowed_host",
                    f"must be a name or an address, with or without a port, without http:// and path, not {name!r}",
                )
        _check_ranges(self)
        _check_range(self, "max_step_tokens", Range(self.max_running, 1_000_000))


@functools.cache
def _ranges_of(config: type[msgspec.Struct]) -> dict[str, Range]:
    hints = get_type_hints(config, include_extras=True)
    return {name: part for name, hint in hints.items() for part in get_args(hint)[1:] if isinstance(part, Range)}


def _check_ranges(config: StreamsConfig | ServeConfig) -> None:
    for field, bounds in _ranges_of(type(config)).items():
        _check_range(config, field, bounds)


def _check_range(config: StreamsConfig | ServeConfig, field: str, bounds: Range) -> None:
    value = getattr(config, field)
    if value is not None and not bounds.holds(value):
        raise ConfigError(field, f"must be {bounds}, not {value}")
