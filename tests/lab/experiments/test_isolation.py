"""Answers alone and in company, by their token ids."""

from __future__ import annotations

from sluiceway.lab.experiments.isolation import compared, verdict
from support.labs import lab_of
from support.records import run


def test_answers_are_compared_token_by_token() -> None:
    """Where one parts is where the first token differs."""
    assert compared([(1, 2), (3, 4)], [(1, 2), (3, 4)]) == {"answers": 2.0, "same": 2.0}
    found = compared([(1, 2, 3), (3, 4, 5), (6, 7, 8)], [(1, 2, 9), (3, 0, 5), (6, 7, 8)])
    assert found == {"answers": 3.0, "same": 1.0, "first_divergence_tokens": 1.0}


def test_answer_that_is_cut_short_parts_where_it_ends() -> None:
    """In either direction."""
    assert compared([(1, 2, 3)], [(1, 2)])["first_divergence_tokens"] == 2.0
    assert compared([(1, 2)], [(1, 2, 3)])["first_divergence_tokens"] == 2.0


def test_verdict_counts_all_runs_of_a_server() -> None:
    """And names the earliest place where an answer parted."""
    lab = lab_of(
        run("bfloat16", "greedy", 2, answers=2.0, same=2.0),
        run("bfloat16", "greedy", 4, answers=4.0, same=3.0, first_divergence_tokens=9.0),
        run("float32", "greedy", 4, answers=4.0, same=4.0),
    )
    parted, kept = verdict(lab, "bfloat16", "greedy"), verdict(lab, "float32", "greedy")
    assert not parted.stood and kept.stood
    assert parted.sentence.startswith("5 of 6 answers") and parted.sentence.endswith("did so after 9 tokens")
    assert kept.sentence == "4 of 4 answers have the token ids that they have alone"
