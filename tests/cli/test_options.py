"""Flags that several commands share."""

from __future__ import annotations

from typing import Any

import pytest
import typer
import typer.main

from sluiceway.cli.app import app
from sluiceway.cli.options import filled, inside, sampling_of, variable_of
from sluiceway.errors import ConfigError, RequestError
from sluiceway.protocols.common.fields import SamplingFields, check
from sluiceway.protocols.openai.requests import ChatFields
from sluiceway.ranges import Range

BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def test_variable_has_the_flags_name() -> None:
    assert variable_of("--max-step-tokens") == "SLUICEWAY_MAX_STEP_TOKENS"


@pytest.mark.parametrize("value", [0.0, -1.0, 1.5, float("nan"), float("inf"), float("-inf")])
def test_number_outside_of_its_range_is_refused(value: float) -> None:
    """A server refuses it too, so the flag means the same with and without one."""
    with pytest.raises(typer.BadParameter, match="above 0 and at most 1"):
        inside(Range(0, 1, is_above=True))(value)


def test_number_inside_its_range_is_passed_on() -> None:
    """And so is a flag that was not given."""
    check_share = inside(Range(0, 1, is_above=True))
    assert (check_share(0.01), check_share(1.0), check_share(None), filled(None)) == (0.01, 1.0, None, None)


def test_stop_text_is_refused_when_it_is_empty() -> None:
    assert filled(["a", "b"]) == ["a", "b"]
    with pytest.raises(typer.BadParameter, match="must not be empty"):
        filled(["a", ""])


@pytest.mark.parametrize("command", ["chat", "generate"])
def test_flags_have_the_ranges_of_the_servers_fields(command: str) -> None:
    """The schema accepts the ends of each range, and nothing beyond."""
    group: Any = typer.main.get_command(app)
    flags = {flag.name: flag for flag in group.commands[command].params if flag.name in SamplingFields.model_fields}
    bounded = {name: flag for name, flag in flags.items() if flag.max is not None}
    for name, flag in bounded.items():
        assert check(ChatFields, {**BODY, name: flag.max})
        for outside in (flag.min - 1, flag.max + 1):
            with pytest.raises(RequestError, match=name):
                check(ChatFields, {**BODY, name: outside})
    assert set(bounded) == {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "max_tokens", "seed",
    }  # fmt: skip


def test_flags_are_checked_together() -> None:
    """The error names the field of the flag."""
    assert sampling_of({"temperature": 0.5, "seed": None}).temperature == 0.5
    with pytest.raises(ConfigError) as caught:
        sampling_of({}, ["x"] * 17)
    assert caught.value.field == "stop"
    with pytest.raises(ConfigError) as caught:
        sampling_of({"stop": ["x" * 2000]})
    assert caught.value.field == "stop"
