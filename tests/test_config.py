"""Settings are checked when they are made, and the error names the wrong one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sluiceway.config import EngineConfig, ModelFiles, ModelKind, ServeConfig, StreamsConfig
from sluiceway.errors import ConfigError

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


def engine(**fields: Any) -> EngineConfig:
    usual: dict[str, Any] = {"n_blocks": 4, "max_model_len": 100, "vocab_size": 10, "eos_token_ids": (9,)}
    return EngineConfig(**usual | fields)


def serve(field: str, value: object) -> ServeConfig:
    changed: dict[str, Any] = {field: value}
    return ServeConfig(model=FAKE, **changed)


@pytest.mark.parametrize(
    "field",
    ["n_blocks", "max_model_len", "vocab_size", "block_tokens", "max_running", "max_step_tokens", "max_draft_tokens"],
)
def test_an_engine_has_at_least_one_of_everything(field: str) -> None:
    """Zero is refused, and one is allowed (with one row)."""
    with pytest.raises(ConfigError, match=field) as caught:
        engine(**{field: 0})
    assert caught.value.field == field
    assert engine(**{"max_running": 1, "max_step_tokens": 1} | {field: 1})


def test_a_queue_may_be_empty_but_not_negative() -> None:
    """With zero, a request starts immediately or is refused."""
    assert engine(max_waiting=0).max_waiting == 0
    with pytest.raises(ConfigError, match="max_waiting"):
        engine(max_waiting=-1)


def test_a_step_has_room_for_a_token_of_every_row() -> None:
    """Otherwise the youngest rows would get no tokens."""
    assert engine(max_running=8, max_step_tokens=8)
    with pytest.raises(ConfigError, match="max_step_tokens"):
        engine(max_running=8, max_step_tokens=7)


@pytest.mark.parametrize("step_target_s", [0.0, -1.0, float("nan")])
def test_a_step_takes_some_time(step_target_s: float) -> None:
    """A step without time could compute nothing."""
    with pytest.raises(ConfigError, match="step_target_s"):
        engine(step_target_s=step_target_s)


@pytest.mark.parametrize(("n_blocks", "longest"), [(4, 64), (6, 96), (7, 100)])
def test_a_sequence_fits_into_the_context_and_into_the_cache(n_blocks: int, longest: int) -> None:
    """The smaller of the two is the limit."""
    assert engine(n_blocks=n_blocks).max_sequence_tokens == longest


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("port", 0, 65_535),
        ("max_running", 1, 512),
        ("max_waiting", 0, 1_000_000),
        ("max_step_tokens", 64, 1_000_000),
        ("step_target_s", 0.001, 60.0),
        ("max_draft_tokens", 1, 64),
        ("max_model_len", 2, 1 << 32),
        ("kv_cache_tokens", 16, 1 << 32),
        ("drain_timeout_s", 0.0, 86_400.0),
        ("heartbeat_timeout_s", 0.5, 3_600.0),
        ("keep_alive_s", 1.0, 86_400.0),
        ("max_body_bytes", 1024, 1 << 32),
        ("threads", 0, 1024),
        ("fake_step_s", 0.0, 60.0),
    ],
)
def test_a_setting_is_taken_within_its_range_only(field: str, low: float, high: float) -> None:
    """Both ends are allowed. Beyond them, the error names the field."""
    for value in (low, high):
        assert getattr(serve(field, value), field) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError) as caught:
            serve(field, value)
        assert caught.value.field == field or (field, value) == ("max_running", high + 1)


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("sse_keep_alive_s", 0.0, 86_400.0),
        ("max_stream_bytes", 1, 1 << 40),
        ("max_stream_events", 1, 1 << 40),
        ("replay_bytes", 1, 1 << 40),
        ("replay_events", 1, 1_000_000),
        ("replay_ttl_s", 0.0, 86_400.0),
        ("detach_grace_s", 0.0, 86_400.0),
        ("detach_ahead_tokens", 0, 1_000_000),
        ("history_records", 1, 1_000_000),
        ("history_ttl_s", 1.0, 86_400.0),
        ("idempotency_keys", 1, 1_000_000),
        ("idempotency_ttl_s", 1.0, 86_400.0),
        ("unsent_bytes", 0, 1 << 30),
        ("write_bytes", 0, 1 << 30),
    ],
)
def test_a_setting_of_streams_is_taken_within_its_range_only(field: str, low: float, high: float) -> None:
    """Both ends are allowed. Beyond them, the error names the field."""
    for value in (low, high):
        assert getattr(StreamsConfig(**{field: value}), field) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1, math.nan):
        with pytest.raises(ConfigError, match=field):
            StreamsConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["drain_timeout_s", "heartbeat_timeout_s", "keep_alive_s", "fake_step_s"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_time_is_a_number(field: str, value: float) -> None:
    """NaN would pass a careless check."""
    with pytest.raises(ConfigError, match=field):
        serve(field, value)


def test_the_context_is_the_models_own_by_default() -> None:
    """None is not checked as a number."""
    assert ServeConfig(model=FAKE).max_model_len is None


@pytest.mark.parametrize("name", ["", "a b", "http://x", "x:abc", "*.example", "me@x"])
def test_an_allowed_host_is_a_name(name: str) -> None:
    """It may have a port, or be `*`."""
    assert serve("allowed_host", ("chat.example", "chat.example:443", "[::1]", "*")).allowed_host
    with pytest.raises(ConfigError, match="with or without a port") as caught:
        serve("allowed_host", ("chat.example", name))
    assert caught.value.field == "allowed_host" and "without http:// and path" in str(caught.value)


@pytest.mark.parametrize("name", ["null", "NULL"])
def test_the_origin_null_is_not_a_host(name: str) -> None:
    """Every sandboxed frame and every file has this origin."""
    with pytest.raises(ConfigError, match="pages that have none") as caught:
        serve("allowed_host", (name,))
    assert caught.value.field == "allowed_host"
