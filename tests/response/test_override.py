"""The options of a request become a policy, or an error that names the field."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import RequestError
from sluiceway.response.override import HEADER, policy_from_header, policy_from_json
from sluiceway.response.policy import DEFAULT, POLICIES, PolicyName

SERVED = list(PolicyName)
OWN = msgspec.structs.replace(DEFAULT, park_after_s=1.0)
"""A server's own policy, which differs from the usual one of its name."""


def test_the_policy_of_the_server_is_the_default() -> None:
    """`null` is the same as no field, for the whole object and for a threshold."""
    assert policy_from_json(None, OWN) is OWN
    assert policy_from_json({"policy": None, "drop_after_s": None}, OWN) == OWN


@pytest.mark.parametrize("name", SERVED)
def test_a_name_selects_a_policy(name: PolicyName) -> None:
    """In the body and in the header. The policy has its default values."""
    assert policy_from_json(name.value, POLICIES[name]) == POLICIES[name]
    assert policy_from_header(f" {name.value} ", POLICIES[name]) == POLICIES[name]


def test_the_policy_of_the_server_keeps_its_values_when_it_is_named() -> None:
    """Any other policy has its default values."""
    assert policy_from_json("pause-park-drop", OWN) is not DEFAULT
    assert policy_from_json("pause-park-drop", OWN) == OWN
    assert policy_from_json("drop", OWN) == POLICIES[PolicyName.DROP]


def test_thresholds_change_the_named_policy() -> None:
    """Without a name they change the policy of the server."""
    wish = {"policy": "drop", "drop_after_s": 1, "high_events": 16, "low_events": 4}
    changed = msgspec.structs.replace(POLICIES[PolicyName.DROP], drop_after_s=1, high_events=16, low_events=4)
    assert policy_from_json(wish, OWN) == changed
    assert policy_from_header("drop; drop_after_s=1;high_events = 16; low_events=4", OWN) == changed
    assert policy_from_json({"drop_after_s": 7.5}, OWN) == msgspec.structs.replace(OWN, drop_after_s=7.5)
    assert policy_from_header("pause-park-drop;drop_after_s=7.5", OWN).drop_after_s == 7.5


@pytest.mark.parametrize(
    ("wish", "param"),
    [
        ([], "sluiceway.slow_client"),
        (True, "sluiceway.slow_client"),
        ("naive", "sluiceway.slow_client"),
        ("Drop", "sluiceway.slow_client"),
        ({"policy": 3}, "sluiceway.slow_client"),
        ({"park_after": 1}, "sluiceway.slow_client.park_after"),
        ({"name": "drop"}, "sluiceway.slow_client.name"),
        ({"park_after_s": "1"}, "sluiceway.slow_client.park_after_s"),
        ({"park_after_s": True}, "sluiceway.slow_client.park_after_s"),
        ({"high_bytes": 1.5}, "sluiceway.slow_client.high_bytes"),
        ({"high_bytes": -1}, "sluiceway.slow_client.high_bytes"),
        ({"park_after_s": math.nan}, "sluiceway.slow_client.park_after_s"),
        ({"policy": "pause", "drop_after_s": 1}, "sluiceway.slow_client.drop_after_s"),
        ({"low_events": 100_000}, "sluiceway.slow_client.low_events"),
        ({"high_bytes": 10**400}, "sluiceway.slow_client.high_bytes"),
        ({"x" * 100: 1}, "sluiceway.slow_client." + "x" * 64),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(wish: object, param: str) -> None:
    """The status is 400. The param and the message have the path of the field."""
    with pytest.raises(RequestError) as caught:
        policy_from_json(wish, DEFAULT)
    refusal = caught.value.refusal
    assert (refusal.status, refusal.code, refusal.param) == (400, "invalid_value", param)
    assert refusal.message.startswith(f"`{param}` ") and refusal.message.endswith(".")


@pytest.mark.parametrize(
    "value", ["", "naive", "drop; drop_after_s", "drop; drop_after_s=soon", "drop; high_bytes=1.5"]
)
def test_a_wrong_header_is_refused(value: str) -> None:
    """The error names the header."""
    with pytest.raises(RequestError, match="Sluiceway-Slow-Client"):
        policy_from_header(value, DEFAULT)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)
FIELDS = st.sampled_from([*DEFAULT.__struct_fields__, "policy"])


@settings(derandomize=True, max_examples=200, deadline=None)
@given(JSON | st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_json_is_a_policy_or_is_refused(wish: object) -> None:
    """No other exception is raised."""
    try:
        policy = policy_from_json(wish, DEFAULT)
    except RequestError:
        return
    assert policy.name in SERVED


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.lists(FIELDS.map(lambda name: f"{name}=1"), max_size=3).map(";".join))
def test_any_header_is_a_policy_or_is_refused(value: str) -> None:
    """No other exception is raised."""
    try:
        policy = policy_from_header(value, DEFAULT)
    except RequestError:
        return
    assert policy.name in SERVED


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (1, "`slow_client.k0` is no threshold"),
        (2, "`slow_client.k0`, `slow_client.k1` are no thresholds"),
        (12, "`slow_client.k9` and 2 more are no thresholds"),
    ],
)
def test_all_unknown_thresholds_are_named(n: int, expected: str) -> None:
    """The message names ten of them, and the number of the others."""
    with pytest.raises(RequestError) as caught:
        policy_from_json({f"k{i}": 1 for i in range(n)}, OWN, "slow_client")
    assert expected in caught.value.refusal.message and caught.value.refusal.param == "slow_client.k0"


@pytest.mark.parametrize("value", ["drop; drop_after_s=1; drop_after_s=2", "drop;drop_after_s=1;drop_after_s =1"])
def test_a_threshold_is_refused_when_the_header_has_it_twice(value: str) -> None:
    """The server does not guess which one counts."""
    with pytest.raises(RequestError, match="is given more than once") as caught:
        policy_from_header(value, POLICIES[PolicyName.DROP])
    assert caught.value.refusal.param == f"{HEADER}.drop_after_s"


def test_a_second_policy_is_refused_when_the_header_names_one() -> None:
    """The first word of the header is the policy."""
    with pytest.raises(RequestError, match=r"`Sluiceway-Slow-Client.policy` is given more than once"):
        policy_from_header("drop; policy=pause", POLICIES[PolicyName.DROP])
