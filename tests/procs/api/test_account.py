"""What came in equals what went out and what is here."""

from __future__ import annotations

from sluiceway.procs.api.account import Account


def test_nothing_is_wrong_when_the_counts_agree() -> None:
    """Submitted is rejected, finished, live and cancelled together."""
    account = Account(submitted=10, accepted=7, rejected=2, finished=4)
    assert account.violations(live=3, tombstones=1) == []
    assert account.facts(sessions=2, live=3, tombstones=1) == {
        "sessions": 2,
        "live": 3,
        "tombstones": 1,
        "submitted": 10,
        "accepted": 7,
        "rejected": 2,
        "finished": 4,
    }


def test_a_lost_sequence_is_named() -> None:
    """With the numbers that do not agree."""
    (sentence,) = Account(submitted=3, finished=1).violations(live=1, tombstones=0)
    assert "3 sequences were submitted" in sentence and "are 2" in sentence
