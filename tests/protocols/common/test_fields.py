"""Fields that all generation requests have: their ranges, and the errors that name them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ConfigDict

from sluiceway.errors import RequestError
from sluiceway.ipc.messages.to_tokenizer import TextPrompt
from sluiceway.protocols.common.fields import (
    GREEDY_BELOW,
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    SamplingFields,
    check,
)
from sluiceway.protocols.common.stream_options import StreamOptions
from sluiceway.protocols.openai.requests import (
    COMPLETION_MAX_TOKENS,
    ChatFields,
)
from sluiceway.types import SamplingParams
from support.fields import CHAT, COMPLETION, chat, completion, refusal_of


def sampling(**fields: Any) -> SamplingParams:
    return chat(**fields).request(()).sampling


def test_null_means_the_default_for_every_optional_field() -> None:
    """SDKs send null for fields that their user did not set."""
    for call, required in ((chat, CHAT), (completion, COMPLETION)):
        fields = type(call()).model_fields
        nulls = dict.fromkeys(fields.keys() - required.keys())
        assert call(**nulls).request(()) == call().request(())


def test_every_field_reaches_the_generation_request() -> None:
    fields = chat(
        n=2,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        max_tokens=9,
        min_tokens=3,
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=7,
        presence_penalty=1,
        frequency_penalty=-2,
        repetition_penalty=1.5,
        logit_bias={"5": -100, "006": 0.5},
        ignore_eos=True,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        return_token_ids=True,
        logprobs=True,
        top_logprobs=3,
        sluiceway={"speculation": "ngram", "resumable": True, "stream_id": "mine"},
    )
    request = fields.request((TextPrompt("x"),))
    assert request.include_usage
    assert request.return_token_ids
    assert (request.n, request.n_choices, request.stop, request.stream) == (2, 2, ("a", "b"), True)
    assert request.stream_options == StreamOptions(resumable=True, stream_id="mine")
    assert request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=7,
        presence_penalty=1.0,
        frequency_penalty=-2.0,
        repetition_penalty=1.5,
        logit_bias=((5, -100.0), (6, 0.5)),
        ignore_eos=True,
        min_tokens=3,
        max_tokens=9,
        stop_token_ids=(1, 2),
        speculation="ngram",
        logprobs=3,
    )


GOOD: list[tuple[str, Any]] = [
    ("n", 1),
    ("n", 128),
    ("max_tokens", 1),
    ("max_tokens", 2**31 - 1),
    ("max_completion_tokens", 1),
    ("min_tokens", 0),
    ("temperature", 0),
    ("temperature", 2),
    ("top_p", 1e-4),
    ("top_p", 1),
    ("top_k", -1),
    ("top_k", 0),
    ("min_p", 0),
    ("min_p", 1),
    ("seed", -(2**63)),
    ("seed", 2**64 - 1),
    ("presence_penalty", -2),
    ("frequency_penalty", 2.0),
    ("repetition_penalty", 1e-3),
    ("repetition_penalty", 2),
    ("logit_bias", {}),
    ("logit_bias", {"0": 100}),
    ("logit_bias", {str(i): 1 for i in range(MAX_LOGIT_BIASES)}),
    ("stop", "x"),
    ("stop", []),
    ("stop", ["\0"]),
    ("stop", ["x"] * MAX_STOPS),
    ("stop", "x" * MAX_STOP_CHARACTERS),
    ("stop_token_ids", []),
    ("stop_token_ids", [0] * MAX_STOP_TOKEN_IDS),
    ("stream_options", None),
    ("logprobs", True),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("sluiceway", {}),
    ("sluiceway", {"speculation": None}),
    ("sluiceway", {"speculation": "off"}),
]


@pytest.mark.parametrize(("field", "value"), GOOD)
def test_a_value_at_the_end_of_its_range_is_accepted(field: str, value: Any) -> None:
    chat(**{field: value})


COUNTS: list[Any] = [0, -1, 2**31, 10**400, 1e18, 1.5, 2.0, "10", True, [], {}]
FLOATS: list[Any] = ["0.5", True, [], {}, float("inf"), float("-inf"), float("nan"), 10**400]
FLAGS: list[Any] = ["true", 1, 0, [], {}]


def each(field: str, *values: Any) -> list[tuple[str, Any]]:
    return [(field, value) for value in values]


BAD: list[tuple[str, Any]] = [
    *each("n", *COUNTS, 129, 10**9),
    *each("max_tokens", *COUNTS),
    *each("max_completion_tokens", *COUNTS),
    *each("min_tokens", *COUNTS[1:]),
    *each("temperature", *FLOATS, -0.1, 2.1),
    *each("top_p", *FLOATS, 0, -1, 1.1),
    *each("top_k", -2, 2**31, 1.5, "1", True),
    *each("min_p", *FLOATS, -0.1, 1.1),
    *each("seed", -(2**63) - 1, 2**64, 10**400, 1.5, "x", True),
    *each("presence_penalty", *FLOATS, -2.1, 2.1),
    *each("frequency_penalty", *FLOATS, -2.1, 2.1),
    *each("repetition_penalty", *FLOATS, 0, -1, 2.1),
    *each("ignore_eos", *FLAGS),
    *each("stream", *FLAGS),
    *each("return_token_ids", *FLAGS),
    *each("logprobs", *FLAGS),
    *each("top_logprobs", *COUNTS[1:], 1, 20, 21),
    *each("model", None, 1, [], "\ud800"),
    *each("logit_bias", [], "x", 1, {str(i): 1 for i in range(MAX_LOGIT_BIASES + 1)}),
    *each("stop", 1, {}, True, "", "x" * (MAX_STOP_CHARACTERS + 1), ["x"] * (MAX_STOPS + 1)),
    ("stop", ["x"] * 500_000),
    *each("stop_token_ids", "x", 1, {}, [0] * (MAX_STOP_TOKEN_IDS + 1)),
    *each("sluiceway", [], "x", True),
    *each("stream_options", [], "x", True),
    ("stream_options", {}),
    ("stream_options", {"include_usage": True}),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda value: repr(value)[:40])
def test_a_wrong_value_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    """The message is short even when the value is long."""
    refusal = refusal_of(chat, **{field: value})
    assert refusal.param == field
    assert f"`{field}`" in refusal.message
    assert len(refusal.message) < 300


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("stop", ["x", ""], "stop[1]"),
        ("stop", ["x", 1], "stop[1]"),
        ("stop", [None], "stop[0]"),
        ("stop", ["x", "y", "\ud800"], "stop[2]"),
        ("stop", ["x" * (MAX_STOP_CHARACTERS + 1)], "stop[0]"),
        ("stop_token_ids", [1, -1], "stop_token_ids[1]"),
        ("stop_token_ids", [True], "stop_token_ids[0]"),
        ("logit_bias", {"abc": 1}, "logit_bias.abc"),
        ("logit_bias", {"-1": 1}, "logit_bias.-1"),
        ("logit_bias", {"": 1}, "logit_bias."),
        ("logit_bias", {"١": 1}, "logit_bias.١"),
        ("logit_bias", {"2147483648": 1}, "logit_bias.2147483648"),
        ("logit_bias", {"9" * 5000: 1}, "logit_bias." + "9" * 64),
        ("logit_bias", {"5": 1e9}, "logit_bias.5"),
        ("logit_bias", {"5": "1"}, "logit_bias.5"),
        ("logit_bias", {"5": True}, "logit_bias.5"),
        ("logit_bias", {"5": None}, "logit_bias.5"),
        ("stream_options", {"include_usage": "yes"}, "stream_options.include_usage"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
        ("sluiceway", {"speculation": "on"}, "sluiceway.speculation"),
        ("sluiceway", {"speculation": True}, "sluiceway.speculation"),
        ("sluiceway", {"speculation": {}}, "sluiceway.speculation"),
        ("sluiceway", {"speculation": "ngram", "speed": 2}, "sluiceway.speed"),
        ("sluiceway", {"slow_client": 7}, "sluiceway.slow_client"),
        ("sluiceway", {"stream_id": "a/b"}, "sluiceway.stream_id"),
        ("sluiceway", {"grace_s": -1}, "sluiceway.grace_s"),
        ("sluiceway", {"on_disconnect": "detach"}, "sluiceway.on_disconnect"),
        ("sluiceway", {"progress": "events"}, "sluiceway.progress"),
    ],
)
def test_a_wrong_value_inside_a_field_is_named_by_its_whole_path(field: str, value: Any, param: str) -> None:
    """The path has the index or the key of the entry."""
    assert refusal_of(chat, stream=True, **{field: value}).param == param


@pytest.mark.parametrize("temperature", [5e-324, 1e-10, GREEDY_BELOW / 2])
def test_a_temperature_of_almost_zero_counts_as_greedy(temperature: float) -> None:
    """Dividing by it would overflow, and the likeliest token has nearly all the probability anyway."""
    assert sampling(temperature=temperature).temperature == 0.0
    assert sampling(temperature=GREEDY_BELOW).temperature == GREEDY_BELOW


def test_top_k_is_off_when_it_is_0_or_minus_1() -> None:
    """Other servers use one value or the other."""
    assert sampling(top_k=-1).top_k == sampling(top_k=0).top_k == 0


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_refusal_of_a_negative_limit_says_how_to_have_no_limit(field: str) -> None:
    """On other servers, -1 means no limit. A completion without a limit has 16 tokens."""
    assert "(leave it out for no limit), not -1" in refusal_of(chat, **{field: -1}).message
    assert "no limit" not in refusal_of(chat, **{field: 0}).message
    assert "(give a large number for no limit), not -1" in refusal_of(completion, max_tokens=-1).message


def test_min_tokens_above_max_tokens_is_refused() -> None:
    """A completion always has a limit, a chat only if the request sets one."""
    assert refusal_of(chat, min_tokens=6, max_tokens=5).param == "min_tokens"
    assert refusal_of(completion, min_tokens=COMPLETION_MAX_TOKENS + 1).param == "min_tokens"
    assert sampling(min_tokens=6).min_tokens == 6
    assert sampling(min_tokens=5, max_tokens=5).min_tokens == 5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("n", "10", '`n` must be an integer, not "10".'),
        ("top_p", True, "`top_p` must be a number, not true."),
        ("stream", "yes", '`stream` must be true or false, not "yes".'),
        ("stream_options", [1, 2], "`stream_options` must be an object, not a list of 2."),
        ("temperature", 3, "`temperature` must be less than or equal to 2, not 3."),
        ("sluiceway", {"speculation": "on"}, "`sluiceway.speculation` must be 'off' or 'ngram', not \"on\"."),
        ("sluiceway", {"speed": 2}, "`sluiceway.speed` is not an option of this server."),
        ("sluiceway", {"slow_client": 7}, "`sluiceway.slow_client` must be the name of a policy or an object, not 7."),
        ("sluiceway", {"progress": "events"}, "`sluiceway.progress` must be 'comments', not \"events\"."),
        ("sluiceway", {"progress": "comments"}, "`sluiceway.progress` may only be given for a streamed answer."),
        ("sluiceway", {"resumable": True}, "`sluiceway.resumable` may only be given for a streamed answer."),
    ],
)
def test_message_says_which_values_are_right(field: str, value: Any, message: str) -> None:
    """It uses the words of JSON, for readers who do not know Python."""
    assert refusal_of(chat, **{field: value}).message == message


def test_two_keys_of_logit_bias_for_the_same_token_are_refused() -> None:
    """The server could only guess which of them the client means."""
    refusal = refusal_of(chat, logit_bias={"5": 1, "05": 2, "6": 1, "7": 1, "007": 1})
    assert refusal.param == "logit_bias"
    assert refusal.message == "`logit_bias` has more than one key for the token `5` and `7`."


def test_all_wrong_entries_of_logit_bias_are_named() -> None:
    """A key must be a token id, and a value must be in its range."""
    refusal = refusal_of(chat, logit_bias={"x": 1, "5": 2, "y": 1, "6": 101})
    assert refusal.param == "logit_bias.x"
    assert all(word in refusal.message for word in ('"x"', '"y"', "`logit_bias.6`")) and '"5"' not in refusal.message


def test_all_wrong_stop_strings_are_named() -> None:
    refusal = refusal_of(chat, stop=["a", "", 5])
    assert refusal.param == "stop[1]" and "`stop[1]`" in refusal.message and "`stop[2]`" in refusal.message


def test_all_wrong_fields_are_named() -> None:
    refusal = refusal_of(chat, temperature=9, top_p=True)
    assert all(f"`{field}`" in refusal.message for field in ("temperature", "top_p"))


@pytest.mark.parametrize("n", [1, 3, 4000])
def test_at_most_ten_unknown_options_are_named(n: int) -> None:
    refusal = refusal_of(chat, sluiceway={f"k{i}": 0 for i in range(n)})
    assert (refusal.code, refusal.param) == ("unsupported_parameter", "sluiceway.k0")
    assert f"`sluiceway.k{min(n, 10) - 1}`" in refusal.message and "`sluiceway.k10`" not in refusal.message
    assert len(refusal.message) < 400


def test_a_missing_field_is_named() -> None:
    refusal = refusal_of(check, fields=ChatFields, body={"messages": CHAT["messages"]})
    assert (refusal.param, refusal.code) == ("model", "missing_required_parameter")


class _ClosedFields(SamplingFields):
    """Fields of a protocol that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")

    @property
    def n_logprobs(self) -> int | None:
        return None


def test_an_unknown_field_is_refused_if_the_protocol_forbids_it() -> None:
    """The message has the hint of the protocol, if there is one for the field."""
    assert check(_ClosedFields, {"top_k": 3}).sampling(None).top_k == 3
    with pytest.raises(RequestError) as caught:
        check(_ClosedFields, {"top_k": 3, "topk": 4}, {"topk": "write `top_k`"})
    refusal = caught.value.refusal
    assert (refusal.status, refusal.code, refusal.param) == (400, "unsupported_parameter", "topk")
    assert refusal.message == "`topk` is not an option of this server; write `top_k`."
