"""A repeated request finds the response of the first one, and no other request does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluiceway.errors import ConfigError, RequestError
from sluiceway.response.idempotency import Claim, Idempotency, KeyState, begin_digest, checked_key


def digest_of(path: str, *parts: bytes) -> bytes:
    digest = begin_digest(path)
    for part in parts:
        digest.update(part)
    return digest.digest()


BODY = digest_of("/v1/chat/completions", b"{", b"}")


def claim(table: Idempotency, stream_id: str, *, key: str = "k", caller: str = "me", now_s: float = 0.0) -> Claim:
    return table.claim(caller, key, BODY, stream_id, now_s)


def table_of(max_entries: int = 9, ttl_s: float = 10.0) -> Idempotency:
    return Idempotency(max_entries=max_entries, ttl_s=ttl_s)


def test_a_repetition_joins_a_running_response_and_replays_an_ended_one() -> None:
    """The id that the repetition proposes does not matter."""
    table = table_of()
    assert claim(table, "a") == Claim(KeyState.NEW, "a")
    assert claim(table, "b") == Claim(KeyState.JOIN, "a")
    table.ended("a", 1.0)
    assert claim(table, "c", now_s=2.0) == Claim(KeyState.REPLAY, "a")


def test_a_key_with_another_request_is_a_conflict() -> None:
    """The body or the path differs. The first response may have ended."""
    table = table_of()
    claim(table, "a")
    table.ended("a", 0.0)
    assert digest_of("/v1/chat/completions", b"{}") == BODY
    for digest in (digest_of("/v1/chat/completions", b"[]"), digest_of("/v1/completions", b"{}")):
        assert table.claim("me", "k", digest, "b", 0.0) == Claim(KeyState.CONFLICT, "a")


def test_keys_of_other_callers_are_other_keys() -> None:
    """No caller gets the response of another one."""
    table = table_of()
    claim(table, "a")
    assert claim(table, "b", caller="you") == Claim(KeyState.NEW, "b")


def test_a_key_is_free_when_its_time_is_over() -> None:
    """The time counts from the first of two ends."""
    table = table_of()
    claim(table, "a")
    claim(table, "live", key="l")
    assert claim(table, "b", now_s=99.0).state is KeyState.JOIN
    table.ended("a", 100.0)
    table.ended("a", 105.0)
    assert claim(table, "b", now_s=109.0).state is KeyState.REPLAY
    assert claim(table, "b", now_s=110.0) == Claim(KeyState.NEW, "b")
    assert claim(table, "c", key="l", now_s=999.0).state is KeyState.JOIN


def test_a_key_is_free_when_its_request_was_refused() -> None:
    """The client should then send the request again."""
    table = table_of()
    claim(table, "a")
    table.forget("a")
    assert claim(table, "b") == Claim(KeyState.NEW, "b")


def test_a_key_that_is_forgotten_frees_its_own_place_only() -> None:
    """The caller has one key less than before."""
    table = table_of(max_entries=5)
    for stream_id in ("a", "b", "c"):
        assert claim(table, stream_id, key=stream_id).state is KeyState.NEW
    table.forget("a")
    assert claim(table, "d", key="d").state is KeyState.NEW
    assert claim(table, "e", key="e").state is KeyState.FULL


def test_an_id_belongs_to_one_key_at_a_time() -> None:
    """While a response has the id, no other key gets it. Later its first key leads to no response."""
    table = table_of()
    claim(table, "a", key="first")
    assert table.claim("me", "second", BODY, "a", 0.0, is_held=True) == Claim(KeyState.TAKEN, "a")
    assert claim(table, "b", key="first") == Claim(KeyState.JOIN, "a")
    table.ended("a", 0.0)
    assert claim(table, "a", key="second") == Claim(KeyState.NEW, "a")
    assert claim(table, "b", key="first") == Claim(KeyState.GONE, "a")
    assert claim(table, "b", key="first", now_s=10.0) == Claim(KeyState.NEW, "b")
    assert claim(table, "c", key="second", now_s=10.0) == Claim(KeyState.JOIN, "a")


def test_a_key_leads_to_nothing_when_another_response_has_its_id() -> None:
    """A response without a key has the id now. It is not the first one, and the key is not new either."""
    table = table_of()
    claim(table, "a")
    table.reused("a")
    assert claim(table, "b").state is KeyState.JOIN
    table.ended("a", 0.0)
    table.reused("a")
    table.reused("a")
    table.forget("a")
    assert claim(table, "b") == Claim(KeyState.GONE, "a")
    assert table.claim("me", "k", b"other", "b", 0.0).state is KeyState.CONFLICT
    assert claim(table, "b", now_s=10.0) == Claim(KeyState.NEW, "b")


def test_a_new_key_is_refused_when_there_is_no_room() -> None:
    """No key is forgotten before its time: its request could then generate twice."""
    table = table_of(max_entries=3)
    claim(table, "a", key="a")
    claim(table, "b", key="b")
    assert claim(table, "c", key="c") == Claim(KeyState.FULL, "c")
    table.ended("b", 1.0)
    assert claim(table, "c", key="c", now_s=4.0) == Claim(KeyState.FULL, "c", retry_after_s=7.0)
    assert claim(table, "d", key="b", now_s=10.9) == Claim(KeyState.REPLAY, "b")
    assert claim(table, "c", key="c", now_s=11.0) == Claim(KeyState.NEW, "c")
    assert claim(table, "d", key="a", now_s=11.0).state is KeyState.JOIN
    assert len(table) == 2


def test_a_caller_with_many_keys_leaves_room_for_others() -> None:
    """A caller may have as many keys as are still free."""
    table = table_of(max_entries=90)

    def n_taken(caller: str) -> int:
        verdicts = [claim(table, f"{caller}{n}", key=str(n), caller=caller).state for n in range(100)]
        assert set(verdicts) == {KeyState.NEW, KeyState.FULL}
        return verdicts.count(KeyState.NEW)

    assert [n_taken(caller) for caller in ("me", "you", "they")] == [45, 23, 11]


def test_many_callers_with_one_key_each_push_no_key_out() -> None:
    """New callers are refused, and the first caller still has its response."""
    table = table_of(max_entries=50)
    claim(table, "mine")
    table.ended("mine", 0.0)
    verdicts = [claim(table, str(n), caller=f"c{n}", now_s=9.0).state for n in range(100)]
    assert verdicts == [KeyState.NEW] * 49 + [KeyState.FULL] * 51
    assert claim(table, "x", now_s=9.9) == Claim(KeyState.REPLAY, "mine")


def test_ends_of_responses_without_a_key_are_ignored() -> None:
    table = table_of()
    table.ended("x", 0.0)
    table.forget("x")
    assert len(table) == 0


@pytest.mark.parametrize("field", ["max_entries", "ttl_s"])
def test_a_bound_of_zero_is_refused(field: str) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match=field):
        Idempotency(**{"max_entries": 1, "ttl_s": 1, field: 0})


@pytest.mark.parametrize("key", ["", " ", "a b", "k" * 256, "ä", "\n", "a\x7f"])
def test_an_invalid_key_is_refused(key: str) -> None:
    """The answer has the status 400 and names the header."""
    with pytest.raises(RequestError) as caught:
        checked_key(key)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, "Idempotency-Key")


@pytest.mark.parametrize("key", ["a", "k" * 255, '"quoted"', "8e03978e-40d5-43dd-bc93-6894a57f9324"])
def test_a_key_is_used_unchanged(key: str) -> None:
    """Quotes that the client sends belong to the key."""
    assert checked_key(key) == key


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["claim", "claim", "end", "forget"]), st.sampled_from("xyz"), st.integers(0, 4)),
        max_size=40,
    )
)
def test_the_table_is_bounded_and_a_key_never_runs_twice(actions: list[tuple[str, str, int]]) -> None:
    table, now_s, running = table_of(max_entries=2, ttl_s=3.0), 0.0, dict[str, str]()
    for number, (action, key, seconds) in enumerate(actions):
        now_s += seconds
        if action == "claim":
            claimed = claim(table, str(number), key=key, now_s=now_s)
            assert (claimed.state is KeyState.JOIN) == (key in running)
            if claimed.state is KeyState.NEW:
                running[key] = claimed.stream_id
        elif key in running:
            stream_id = running.pop(key)
            table.ended(stream_id, now_s) if action == "end" else table.forget(stream_id)
        assert len(running) <= len(table) <= 2
