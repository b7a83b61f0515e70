"""Configuration: frozen values, validated once where they are made, then trusted everywhere."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from sluiceway.errors import ConfigError
from sluiceway.types import Speculation

BLOCK_TOKENS = 16
"""Tokens of one block of the paged KV cache."""

Dtype = Literal["auto", "float32", "bfloat16", "int8"]
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


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of `sluiceway serve`; every process gets the whole of it."""

    model: ModelFiles
    host: str = "127.0.0.1"
    port: int = 8000
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
    keep_alive_s: float = 120.0
    """How long an idle connection is kept; above the pools of common clients."""
    max_body_bytes: int = 16 * 1024 * 1024
    threads: int = 0
    """Compute threads of the engine; 0: one per core."""
    fake_step_s: float = 0.0
    """How long a step of the fake model takes."""
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        self._check_range("port", 0, 65_535)
        self._check_range("max_running", 1, 4096)
        self._check_range("max_waiting", 0, 1_000_000)
        self._check_range("max_step_tokens", self.max_running, 1_000_000)
        self._check_range("step_target_s", 0.001, 60.0)
        self._check_range("max_draft_tokens", 1, 64)
        self._check_range("kv_cache_tokens", BLOCK_TOKENS, 1 << 32)
        self._check_range("drain_timeout_s", 0.0, 86_400.0)
        self._check_range("heartbeat_timeout_s", 0.5, 3_600.0)
        self._check_range("keep_alive_s", 1.0, 86_400.0)
        self._check_range("max_body_bytes", 1024, 1 << 32)
        self._check_range("threads", 0, 1024)
        self._check_range("fake_step_s", 0.0, 60.0)
        if self.max_model_len is not None:
            self._check_range("max_model_len", 2, 1 << 32)

    def _check_range(self, field: str, low: float, high: float) -> None:
        value = getattr(self, field)
        if not low <= value <= high:  # also refuses NaN
            raise ConfigError(field, f"must be from {low} to {high}, not {value}")
