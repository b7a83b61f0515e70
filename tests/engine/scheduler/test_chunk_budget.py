"""The budget of a shared step follows the machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.engine.scheduler.chunk_budget import MIN_CHUNK_TOKENS, ChunkBudget


def _settled(pace: ChunkBudget, *, base_s: float, token_s: float, n_steps: int = 60) -> float:
    """The duration of a step after many steps on a machine of that speed."""
    for _ in range(n_steps):
        pace.observe(pace.chunk_tokens, base_s + token_s * pace.chunk_tokens)
    return base_s + token_s * pace.chunk_tokens


def test_steps_come_to_take_the_target_when_the_machine_allows() -> None:
    """From either side: a budget too large shrinks, one too small grows."""
    for token_s in (0.0001, 0.0003):
        pace = ChunkBudget(target_s=0.05, max_tokens=2048)
        assert abs(_settled(pace, base_s=0.01, token_s=token_s) - 0.05) < 0.002


def test_prompts_double_a_step_when_it_is_long_without_them() -> None:
    """Where streams wait for 0.1 s anyway, a prompt may take as much again."""
    pace = ChunkBudget(target_s=0.05, max_tokens=2048)
    for _ in range(100):
        pace.observe(0, 0.1)
    assert abs(_settled(pace, base_s=0.1, token_s=0.001) - 0.2) < 0.005


def test_prompts_get_on_when_the_machine_is_slow() -> None:
    """Never less than the smallest chunk."""
    pace = ChunkBudget(target_s=0.05, max_tokens=512)
    _settled(pace, base_s=1.0, token_s=0.1)
    assert pace.chunk_tokens == MIN_CHUNK_TOKENS


def test_budget_stays_under_its_ceiling_when_the_machine_is_fast() -> None:
    """The limit of the configuration holds."""
    pace = ChunkBudget(target_s=0.05, max_tokens=512)
    _settled(pace, base_s=0.0, token_s=1e-9)
    assert pace.chunk_tokens == 512


def test_small_ceiling_is_obeyed_from_the_start() -> None:
    """Also where it lies under the smallest chunk."""
    assert ChunkBudget(target_s=0.05, max_tokens=16).chunk_tokens == 16


def test_nothing_is_learnt_from_a_step_with_room_left() -> None:
    """A short prompt in a slow step says nothing about a full one; nor does a step without duration."""
    pace = ChunkBudget(target_s=0.05, max_tokens=512)
    before = pace.chunk_tokens
    pace.observe(before - 1, 10.0)
    pace.observe(before, 0.0)
    assert pace.chunk_tokens == before


@given(st.lists(st.tuples(st.integers(0, 4096), st.floats(0.0, 1e6)), max_size=50), st.integers(1, 4096))
def test_budget_is_within_its_bounds_whatever_is_observed(steps: list[tuple[int, float]], max_tokens: int) -> None:
    """At least one token, at most the ceiling."""
    pace = ChunkBudget(target_s=0.05, max_tokens=max_tokens)
    for prompt_tokens, step_s in steps:
        pace.observe(prompt_tokens, step_s)
        assert 1 <= pace.chunk_tokens <= max_tokens
