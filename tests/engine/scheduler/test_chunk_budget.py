"""The chunk budget follows the speed of the machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.engine.scheduler.chunk_budget import MIN_CHUNK_TOKENS, ChunkBudget


def _settled(budget: ChunkBudget, *, base_s: float, token_s: float, n_steps: int = 60) -> float:
    """The duration of a step after many steps on a machine of that speed."""
    for _ in range(n_steps):
        budget.observe(budget.chunk_tokens, base_s + token_s * budget.chunk_tokens)
    return base_s + token_s * budget.chunk_tokens


def test_budget_converges_to_steps_of_the_target_duration() -> None:
    """A budget shrinks if it is too large, and grows if it is too small."""
    for token_s in (0.0001, 0.0003):
        budget = ChunkBudget(target_s=0.05, max_tokens=2048)
        assert abs(_settled(budget, base_s=0.01, token_s=token_s) - 0.05) < 0.002


def test_chunks_at_most_double_a_step_that_is_long_without_them() -> None:
    """If streams wait 0.1 s anyway, a chunk may take 0.1 s more."""
    budget = ChunkBudget(target_s=0.05, max_tokens=2048)
    for _ in range(100):
        budget.observe(0, 0.1)
    assert abs(_settled(budget, base_s=0.1, token_s=0.001) - 0.2) < 0.005


def test_budget_never_falls_below_the_smallest_chunk() -> None:
    budget = ChunkBudget(target_s=0.05, max_tokens=512)
    _settled(budget, base_s=1.0, token_s=0.1)
    assert budget.chunk_tokens == MIN_CHUNK_TOKENS


def test_budget_never_exceeds_the_configured_maximum() -> None:
    budget = ChunkBudget(target_s=0.05, max_tokens=512)
    _settled(budget, base_s=0.0, token_s=1e-9)
    assert budget.chunk_tokens == 512


def test_small_maximum_holds_from_the_start() -> None:
    """Even below the smallest chunk."""
    assert ChunkBudget(target_s=0.05, max_tokens=16).chunk_tokens == 16


def test_steps_with_room_left_do_not_change_the_budget() -> None:
    """A short prompt in a slow step says nothing about a full one. A step without a duration is ignored too."""
    budget = ChunkBudget(target_s=0.05, max_tokens=512)
    before = budget.chunk_tokens
    budget.observe(before - 1, 10.0)
    budget.observe(before, 0.0)
    assert budget.chunk_tokens == before


@given(st.lists(st.tuples(st.integers(0, 4096), st.floats(0.0, 1e6)), max_size=50), st.integers(1, 4096))
def test_budget_is_within_its_bounds_whatever_is_observed(steps: list[tuple[int, float]], max_tokens: int) -> None:
    """At least one token, at most the maximum."""
    budget = ChunkBudget(target_s=0.05, max_tokens=max_tokens)
    for prompt_tokens, step_s in steps:
        budget.observe(prompt_tokens, step_s)
        assert 1 <= budget.chunk_tokens <= max_tokens
