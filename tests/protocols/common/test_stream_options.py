"""What a request may ask of its stream."""

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


def test_nothing_is_wished_when_nothing_is_given() -> None:
    """Null is the same as leaving a field out."""
    assert fields().options == StreamOptions() == fields(**dict.fromkeys(StreamOptionFields.model_fields)).options


def test_options_are_lowered_when_all_are_given() -> None:
    """Each in its place."""
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
def test_wish_is_refused_when_it_is_wrong(field: str, value: object) -> None:
    """By its own field; an unknown one too."""
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
def test_wish_for_a_stream_is_refused_when_the_answer_is_none(given: dict[str, Any], param: str) -> None:
    """A plain answer cannot be resumed, and nothing can be said before it."""
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
def test_wish_is_refused_when_another_does_not_go_with_it(given: dict[str, Any], param: str) -> None:
    """It would have no effect."""
    with pytest.raises(RequestError) as caught:
        fields(**given).check_options("at.", is_streamed=True)
    assert caught.value.refusal.param == param


def test_little_is_asked_of_options_when_the_answer_is_plain() -> None:
    """It too has an id, and may have a reader that is slow."""
    fields(slow_client="drop", stream_id="a", on_disconnect="cancel").check_options("", is_streamed=False)


def test_id_of_a_header_is_taken_when_it_can_stand_in_a_path() -> None:
    """As it is, or not at all."""
    assert checked_stream_id("chat-7") == "chat-7"
    for value in ("", "a/b", "..", "a" * 129):
        with pytest.raises(RequestError, match="x-stream-id"):
            checked_stream_id(value)
