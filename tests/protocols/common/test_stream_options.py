"""The options that a request may set for its stream."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluiceway.errors import RequestError
from sluiceway.protocols.common.stream_options import (
    MAX_THRESHOLDS,
    StreamOptionFields,
    StreamOptions,
    checked_stream_id,
)


def fields(**given: Any) -> StreamOptionFields:
    return StreamOptionFields.model_validate(given)


def test_without_fields_the_options_are_the_defaults() -> None:
    """A field that is null counts as left out."""
    assert fields().options == StreamOptions() == fields(**dict.fromkeys(StreamOptionFields.model_fields)).options


def test_every_field_sets_its_option() -> None:
    given: dict[str, Any] = {
        "slow_client": {"policy": "drop", "drop_after_s": 1},
        "resumable": True,
        "on_disconnect": "detach",
        "grace_s": 5,
        "keep_alive_s": 0,
        "stream_id": "a-B_9.~",
        "progress": "events",
    }
    checked = fields(**given)
    checked.check_options("", is_streamed=True)
    assert checked.options == StreamOptions(**given)


BAD: dict[str, list[Any]] = {
    "slow_client": [1, True, [], {f"k{i}": 0 for i in range(MAX_THRESHOLDS + 1)}],
    "resumable": [1, "true"],
    "on_disconnect": ["stay", "", True],
    "grace_s": [-1, 3601, "1", True, float("nan")],
    "keep_alive_s": [-1, 3601, "1", True, float("nan")],
    "stream_id": [1, "", ".", "..", "-a", "a/b", "a b", "é", "a\n", "a" * 129, {}],
    "progress": [1, True, "", "on", "Events", ["events"]],
    "color": [1],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_wrong_values_and_unknown_fields_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        fields(**{field: value})
    assert [error["loc"] for error in caught.value.errors()] == [(field,)]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"resumable": True}, "at.resumable"),
        ({"keep_alive_s": 0}, "at.keep_alive_s"),
        ({"progress": "comments"}, "at.progress"),
    ],
)
def test_an_option_for_streams_is_refused_for_an_answer_that_is_sent_whole(given: dict[str, Any], param: str) -> None:
    """Such an answer cannot be resumed, and has no reports before it."""
    fields(**given).check_options("at.", is_streamed=True)
    with pytest.raises(RequestError) as caught:
        fields(**given).check_options("at.", is_streamed=False)
    assert caught.value.refusal.param == param


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"on_disconnect": "detach"}, "at.on_disconnect"),
        ({"on_disconnect": "detach", "resumable": False}, "at.on_disconnect"),
        ({"grace_s": 1}, "at.grace_s"),
        ({"grace_s": 1, "resumable": True, "on_disconnect": "cancel"}, "at.grace_s"),
    ],
)
def test_an_option_is_refused_without_the_option_that_it_needs(given: dict[str, Any], param: str) -> None:
    """It would have no effect."""
    with pytest.raises(RequestError) as caught:
        fields(**given).check_options("at.", is_streamed=True)
    assert caught.value.refusal.param == param


def test_other_options_are_accepted_for_an_answer_that_is_sent_whole() -> None:
    """It has an id too, and may have a slow reader."""
    fields(slow_client="drop", stream_id="a", on_disconnect="cancel").check_options("", is_streamed=False)


def test_stream_id_of_a_header_must_fit_into_a_path() -> None:
    assert checked_stream_id("chat-7") == "chat-7"
    for value in ("", "a/b", "..", "a" * 129):
        with pytest.raises(RequestError, match="x-stream-id"):
            checked_stream_id(value)
