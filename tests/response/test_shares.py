"""A full table drops an entry of the caller that has the most."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.response.shares import Shares


def shares_of(*entries: str) -> Shares[str]:
    """Each entry is the name of a caller, followed by the name of a thing."""
    shares = Shares[str]()
    for entry in entries:
        shares.add(entry[0], entry)
    return shares


def test_the_oldest_of_the_caller_with_the_most_goes_first() -> None:
    """Among equal callers it is the one that added last."""
    shares = shares_of("b1", "a1", "a2", "b2", "a3", "c1")
    assert shares.excess("c") == shares.excess("b") == shares.excess("nobody") == "a1"
    shares.drop("a", "a1")
    assert shares.excess("b") == "b1" and shares.excess("a") == "a2"
    shares.drop("a", "a1")
    shares.drop("x", "x1")
    assert list(shares.of("a")) == ["a2", "a3"] and list(shares.of("x")) == []


def test_a_caller_with_as_much_pushes_no_other_caller_out() -> None:
    """A caller that sends new credentials with each request loses its own entries only."""
    shares = shares_of("b1", "c1", "d1", "e1")
    for caller in "bcde":
        assert shares.excess(caller) == f"{caller}1"


def test_weights_count_where_they_are_given() -> None:
    """An entry that is added again is the newest, and is there once."""
    shares = Shares[str]()
    for thing in ("b1", "b2", "b3"):
        shares.add("b", thing, 1)
    shares.add("a", "a1", 10)
    assert shares.excess("b") == "a1"
    shares.add("a", "a1", 2)
    assert shares.excess("a") == "b1"
    shares.add("b", "b1", 1)
    assert list(shares.of("b")) == ["b2", "b3", "b1"]


def test_many_changes_take_no_more_memory() -> None:
    """Nothing asks for the largest share while the table is not full."""
    shares = shares_of("b1", "b2", "b3")
    sizes = []
    for n in range(1000):
        shares.add("a", f"a{n}")
        shares.drop("a", f"a{n - 1}")
        sizes.append(len(pickle.dumps(shares)))
    assert max(sizes[500:]) < 2 * max(sizes[:100])
    assert shares.excess("a") == "b1"


def test_an_empty_table_has_nothing_to_drop() -> None:
    shares = shares_of("a1")
    shares.drop("a", "a1")
    with pytest.raises(LookupError):
        shares.excess("a")


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"), st.integers(0, 9)), max_size=400))
def test_the_dropped_entry_is_always_of_a_caller_with_the_most(actions: list[tuple[bool, str, int]]) -> None:
    shares, held = Shares[int](), dict[tuple[str, int], None]()
    for adds, caller, thing in [*actions, *actions]:
        held.pop((caller, thing), None)
        if adds:
            shares.add(caller, thing)
            held[caller, thing] = None
        else:
            shares.drop(caller, thing)
        counts = Counter(owner for owner, _ in held)
        if held:
            going = shares.excess(caller)
            most = max(counts.values())
            losers = {owner for owner, n in counts.items() if n == most}
            losers = {caller} if caller in losers else losers
            assert going in {next(one for owner, one in held if owner == loser) for loser in losers}
