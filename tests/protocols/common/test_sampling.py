"""Sampling parameters in Python have the same ranges and error messages as over HTTP."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from sluiceway import types
from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.common.fields import check
from sluiceway.protocols.common.sampling import SamplingParams, lower_sampling
from sluiceway.protocols.openai.requests import ChatFields

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}

OUTSIDE: list[tuple[str, Any]] = [
    ("min_p", 2.0),
    ("min_p", -0.1),
    ("temperature", -1),
    ("temperature", 2.5),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 5),
    ("top_k", -2),
    ("top_k", 1.5),
    ("top_k", 1 << 31),
    ("repetition_penalty", 0),
    ("repetition_penalty", 3),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("seed", 2**70),
    ("seed", "7"),
    ("max_tokens", 0),
    ("max_tokens", 1 << 31),
    ("min_tokens", -1),
    ("n", 0),
    ("n", 129),
    ("stop", ""),
    ("stop", 7),
    ("ignore_eos", 1),
    ("logit_bias", 5),
    ("stop_token_ids", 5),
]


def refusal_of(**fields: Any) -> Refusal:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**fields)
    return caught.value.refusal


@pytest.mark.parametrize(("field", "value"), OUTSIDE)
def test_a_value_outside_its_range_raises_the_error_of_http(field: str, value: Any) -> None:
    """The constructor raises it."""
    with pytest.raises(RequestError) as caught:
        check(ChatFields, {**BODY, field: value})
    assert refusal_of(**{field: value}) == caught.value.refusal
    assert caught.value.refusal.param == field


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("logprobs", 999, "logprobs"),
        ("logprobs", -1, "logprobs"),
        ("speculation", "on", "speculation"),
        ("stop", [""], "stop[0]"),
        ("stop", ("a", ""), "stop[1]"),
        ("stop", [7], "stop[0]"),
        ("stop", ["x"] * 17, "stop"),
        ("stop", "x" * 1025, "stop"),
        ("stop", "\ud800", "stop"),
        ("stop_token_ids", (1, -1), "stop_token_ids[1]"),
        ("logit_bias", {5: 101.0}, "logit_bias.5"),
        ("logit_bias", {-1: 1.0}, "logit_bias.-1"),
        ("logit_bias", ((5, math.nan),), "logit_bias.5"),
        ("logit_bias", ((5, 1.0), (5, 2.0)), "logit_bias"),
        ("logit_bias", ((5, 1.0, 2.0),), "logit_bias"),
        ("logit_bias", [5], "logit_bias"),
    ],
)
def test_error_names_the_wrong_value(field: str, value: Any, param: str) -> None:
    refusal = refusal_of(**{field: value})
    assert refusal.param == param
    assert field in refusal.message


def test_min_tokens_above_max_tokens_is_refused() -> None:
    assert refusal_of(min_tokens=9, max_tokens=8).param == "min_tokens"


def test_unknown_field_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="prompt_logprobs"):
        SamplingParams(prompt_logprobs=1)  # type: ignore[call-arg]


def test_values_are_converted_as_over_http() -> None:
    params = SamplingParams(
        temperature=0.00001,
        top_k=-1,
        n=3,
        stop="x",
        logit_bias={5: 1, 7: -2.5},
        stop_token_ids=(4,),
        seed=-1,
        logprobs=20,
    )
    sampling, n, stop = lower_sampling(params)
    assert type(sampling) is types.SamplingParams
    assert sampling == types.SamplingParams(
        temperature=0.0, logit_bias=((5, 1.0), (7, -2.5)), stop_token_ids=(4,), seed=-1, logprobs=20
    )
    assert (n, stop) == (3, ("x",))


@pytest.mark.parametrize("given", [None, types.SamplingParams(), SamplingParams()])
def test_without_values_the_defaults_are_used(given: types.SamplingParams | None) -> None:
    assert lower_sampling(given) == (types.SamplingParams(), 1, ())


@pytest.mark.parametrize("field", types.SamplingParams.__struct_fields__)
def test_none_means_the_default_for_every_field(field: str) -> None:
    nothing: dict[str, Any] = {field: None}
    assert lower_sampling(SamplingParams(**nothing)) == (types.SamplingParams(), 1, ())


@pytest.mark.parametrize("biases", [{5: 1.0}, {"5": 1.0}, ((5, 1.0),), [[5, 1.0]]])
def test_logit_bias_is_a_mapping_or_pairs(biases: Any) -> None:
    assert lower_sampling(SamplingParams(logit_bias=biases)).sampling.logit_bias == ((5, 1.0),)


def test_parameters_of_the_engine_are_checked_when_they_are_used() -> None:
    """Their constructor checks nothing, since every process decodes them."""
    with pytest.raises(RequestError, match="min_p"):
        lower_sampling(types.SamplingParams(min_p=2.0))


def test_parameters_of_another_type_are_refused() -> None:
    with pytest.raises(RequestError, match="`sampling_params` must be SamplingParams, not an object"):
        lower_sampling({"temperature": 0.0})  # type: ignore[arg-type]


def test_stop_strings_are_an_argument_or_a_field_but_not_both() -> None:
    assert lower_sampling(None, "ab").stop == ("ab",)
    assert lower_sampling(SamplingParams(), ["a", "b"]).stop == ("a", "b")
    assert lower_sampling(SamplingParams(stop=["a"]), None).stop == ("a",)
    with pytest.raises(RequestError, match="`stop` is given twice"):
        lower_sampling(SamplingParams(stop="a"), "b")


def test_changed_parameters_are_checked_again() -> None:
    params = SamplingParams(n=2, logit_bias={5: 1.0})
    assert msgspec.structs.replace(params, n=3).n == 3
    with pytest.raises(RequestError, match="`n`"):
        msgspec.structs.replace(params, n=0)
