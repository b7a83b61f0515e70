"""Configuration: frozen values, validated once where they are made, then trusted everywhere."""

from __future__ import annotations

import enum
import re
from typing import Literal

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.types import Speculation

BLOCK_TOKENS = 16
"""Tokens of one block of the paged KV cache."""

HOST = re.compile(
    r"(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?|\[[0-9a-f.]*:[0-9a-f:.]*\])"
    r"(?::(?:[0-5]?[0-9]{0,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?",
    re.ASCII | re.IGNORECASE,
)
"""A name or an address, perhaps with a port: https://www.rfc-editor.org/rfc/rfc9110#section-7.2"""

Dtype = Literal["auto", "float32", "bfloat16", "int8"]
SlowClient = Literal["unbounded", "pause", "drop", "pause-park-drop"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]


class ModelKind(str, enum.Enum):
    """How a model lies on disk."""

    DIRECTORY = "directory"
    GGUF = "gguf"
    FAKE = "fake"
    """No model: the byte tokenizer and the fake runner, for tests and for the lab."""


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model on this machine. `path` is a directory (safetensors, tokenizer.json, config.json) or a GGUF file."""

    kind: ModelKind
    path: str
    name: str
    """The name under which it is served."""


_AT_LEAST_ONE = (
    "n_blocks", "max_model_len", "vocab_size", "block_tokens", "max_running", "max_step_tokens", "max_draft_tokens",
)  # fmt: skip


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's mind needs to know: limits, and facts of the model.

    `max_step_tokens` bounds the tokens computed in one step. Where several sequences share a step, `step_target_s`
    does: it bounds the gap that a long prompt makes for the others. `speculation` holds for sequences that do not say;
    `max_draft_tokens` bounds the drafts of one of them in one step.
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
        """The longest that prompt and answer together may get: the context, or the whole cache where that is less."""
        return min(self.max_model_len, self.n_blocks * self.block_tokens)


class StreamsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How responses are written, held and kept, where a request does not say itself.

    The marks and times of `slow_client` (see `response.policy`) are None where the policy's own defaults hold.
    """

    slow_client: SlowClient = "pause-park-drop"
    low_bytes: int | None = None
    high_bytes: int | None = None
    limit_bytes: int | None = None
    low_events: int | None = None
    high_events: int | None = None
    limit_events: int | None = None
    park_after_s: float | None = None
    drop_after_s: float | None = None
    stall_timeout_s: float | None = None
    sse_keep_alive_s: float = 15.0
    """Silence of a stream after which a comment is sent; 0: never."""
    max_stream_bytes: int = 256 * 1024 * 1024
    """What all answers together may hold: of whole ones all of it, of streams what was not written or is kept."""
    max_stream_events: int = 1_000_000
    replay_bytes: int = 512 * 1024
    """What one resumable stream keeps of events that every reader has got."""
    replay_events: int = 4096
    replay_ttl_s: float = 60.0
    """How long a resumable stream is kept after its end."""
    kept_streams: int = 1024
    """How many ended streams without readers are kept. Beyond it, the caller with the most loses its oldest."""
    detach_grace_s: float = 30.0
    """How long a detached stream waits for a reader, where the request does not say."""
    detach_ahead_tokens: int = 256
    """How many tokens it generates meanwhile."""
    history_records: int = 16_384
    """Of how many streams that have ended one can ask what became of them."""
    history_ttl_s: float = 600.0
    idempotency_keys: int = 16_384
    """How many keys are remembered. A caller may have at most as many as are still free."""
    idempotency_ttl_s: float = 60.0
    """How long the key of a response is remembered after its end."""
    unsent_bytes: int = 4 * 1024
    """What the kernel accepts for one connection beyond what is on its way; 0: as much as it likes."""
    write_bytes: int = 0
    """What waits above the kernel before a connection counts as full."""

    def __post_init__(self) -> None:
        _check_range(self, "sse_keep_alive_s", 0.0, 86_400.0)
        _check_range(self, "max_stream_bytes", 1, 1 << 40)
        _check_range(self, "max_stream_events", 1, 1 << 40)
        _check_range(self, "replay_bytes", 1, 1 << 40)
        _check_range(self, "replay_events", 1, 1_000_000)
        _check_range(self, "replay_ttl_s", 0.0, 86_400.0)
        _check_range(self, "kept_streams", 1, 1_000_000)
        _check_range(self, "detach_grace_s", 0.0, 86_400.0)
        _check_range(self, "detach_ahead_tokens", 0, 1_000_000)
        _check_range(self, "history_records", 1, 1_000_000)
        _check_range(self, "history_ttl_s", 1.0, 86_400.0)
        _check_range(self, "idempotency_keys", 1, 1_000_000)
        _check_range(self, "idempotency_ttl_s", 1.0, 86_400.0)
        _check_range(self, "unsent_bytes", 0, 1 << 30)
        _check_range(self, "write_bytes", 0, 1 << 30)


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of `sluiceway serve`; every process gets the whole of it."""

    model: ModelFiles
    host: str = "127.0.0.1"
    port: int = 8000
    allowed_host: tuple[str, ...] = ()
    """Further host names to which the server answers; `*`: any."""
    dtype: Dtype = "auto"
    max_running: int = 64
    max_waiting: int = 512
    max_step_tokens: int = 512
    step_target_s: float = 0.05
    """How long a step that several sequences share should take, when a prompt is computed in it."""
    speculation: Speculation = "off"
    """For requests that do not say themselves."""
    max_draft_tokens: int = 8
    """The most that speculation proposes for one sequence in one step."""
    max_model_len: int | None = None
    """None: what the model says."""
    kv_cache_tokens: int = 32_768
    drain_timeout_s: float = 30.0
    heartbeat_timeout_s: float = 10.0
    """Silence of a process after which the server says that it is not ready."""
    restart_hung_after_s: float = 60.0
    """Silence of a process after which it is killed and started again; a step may take ten times as long."""
    keep_alive_s: float = 120.0
    """How long an idle connection is kept; above the pools of common clients."""
    max_body_bytes: int = 16 * 1024 * 1024
    streams: StreamsConfig = msgspec.field(default_factory=StreamsConfig)
    threads: int = 0
    """Compute threads of the engine; 0: one per core."""
    fake_step_s: float = 0.0
    """How long a step of the fake model takes."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        _check_range(self, "port", 0, 65_535)
        for name in self.allowed_host:
            if name.lower() == "null":
                raise ConfigError("allowed_host", "must be a host; `null` is the origin of pages that have none")
            if name != "*" and not HOST.fullmatch(name):
                raise ConfigError(
                    "allowed_host",
                    f"must be a name or an address, perhaps with a port, without http:// and path, not {name!r}",
                )
        _check_range(self, "max_running", 1, 4096)
        _check_range(self, "max_waiting", 0, 1_000_000)
        _check_range(self, "max_step_tokens", self.max_running, 1_000_000)
        _check_range(self, "step_target_s", 0.001, 60.0)
        _check_range(self, "max_draft_tokens", 1, 64)
        _check_range(self, "kv_cache_tokens", BLOCK_TOKENS, 1 << 32)
        _check_range(self, "drain_timeout_s", 0.0, 86_400.0)
        _check_range(self, "heartbeat_timeout_s", 0.5, 3_600.0)
        _check_range(self, "restart_hung_after_s", 1.0, 86_400.0)
        _check_range(self, "keep_alive_s", 1.0, 86_400.0)
        _check_range(self, "max_body_bytes", 1024, 1 << 32)
        _check_range(self, "threads", 0, 1024)
        _check_range(self, "fake_step_s", 0.0, 60.0)
        if self.max_model_len is not None:
            _check_range(self, "max_model_len", 2, 1 << 32)


def _check_range(config: StreamsConfig | ServeConfig, field: str, low: float, high: float) -> None:
    value = getattr(config, field)
    if not low <= value <= high:  # also refuses NaN
        raise ConfigError(field, f"must be from {low} to {high}, not {value}")
