"""The verdicts of `first-token`, from invented figures."""

from __future__ import annotations

from sluiceway_lab.experiments.first_token import verdicts
from sluiceway_lab.load.record import Run
from support.labs import lab_of
from support.records import run


def variant(name: str, first_s: float, middle_s: float, last_s: float) -> Run:
    return run(name, "together", 32, first_token_min_s=first_s, first_token_p50_s=middle_s, first_token_p99_s=last_s)


def test_hypotheses_are_supported_when_early_prompts_do_not_wait_for_late_ones() -> None:
    found = verdicts(
        lab_of(
            variant("one step for all", 0.44, 0.44, 0.44),
            variant("as usual", 0.1, 0.25, 0.45),
            variant("small steps", 0.02, 0.4, 0.8),
        )
    )
    assert [one.stood for one in found] == [True, True, True]
    assert found[0].sentence == "440 ms the first, 440 the median, 440 p99"
    assert found[2].sentence == "p99 450 ms against 440; the median 250 against 440"


def test_hypotheses_are_refuted_when_all_prompts_wait_for_the_last() -> None:
    found = verdicts(
        lab_of(
            variant("one step for all", 0.1, 0.2, 0.4),
            variant("as usual", 0.5, 0.5, 0.5),
            variant("small steps", 0.02, 0.4, 0.8),
        )
    )
    assert [one.stood for one in found] == [False, False, False]
