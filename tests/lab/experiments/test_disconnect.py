"""The verdicts of `disconnect`, from invented figures. `test_registry` runs the experiment."""

from __future__ import annotations

import pytest

from sluiceway_lab.experiments.disconnect import verdicts
from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.load.record import Run, Verdict
from support.labs import lab_of


def left(scenario: str, n_steps: float, **figures: float) -> Run:
    given = {"release_s": n_steps * 0.01, "release_steps": n_steps, "step_s": 0.01} | figures
    return Run(server="s", scenario=scenario, streams=0, repeat=0, figures=given)


def ours(n_steps: float, n_unread: float) -> Run:
    tokens = {"tokens_computed": 9.0, "tokens_unread": n_unread, "tokens_begun_after": max(0.0, n_unread - 1)}
    return left("middle, FIN, plain", n_steps, noticed_to_release_s=0.004, **tokens)


def lab_with(steps: list[float], unread: list[float], *others: Run, is_smoke: bool = False) -> Lab:
    runs = [ours(n_steps, n_unread) for n_steps, n_unread in zip(steps, unread, strict=True)]
    return lab_of(*runs, left("queued, FIN, plain", 0.1), *others, is_smoke=is_smoke)


def of_others(lab: Lab) -> list[Verdict]:
    return verdicts(lab)[3:]


@pytest.mark.parametrize(
    ("steps", "unread", "stood"),
    [
        ([0.5, 0.6, 1.9], [0, 1, 2], [True, True, True]),
        ([1.2, 1.3, 1.4], [0, 0, 0], [False, True, True]),
        ([0.2, 0.3, 2.1], [0, 0, 0], [True, False, True]),
        ([0.2, 0.3, 0.4], [0, 3, 0], [True, True, False]),
    ],
    ids=["prompt", "slow in the middle", "one late", "computes on"],
)
def test_release_is_judged_by_the_length_of_a_step(steps: list[float], unread: list[float], stood: list[bool]) -> None:
    assert [verdict.stood for verdict in verdicts(lab_with(steps, unread))] == stood


def test_both_clocks_are_named() -> None:
    assert verdicts(lab_with([0.5], [1]))[0].sentence.endswith("from when it had noticed, 4.0 ms")
    silent = left("first token, RST, plain", 0.5, tokens_computed=2, tokens_unread=1, tokens_begun_after=0)
    assert verdicts(lab_of(silent))[0].sentence.endswith("the server does not say")


def test_smoke_run_judges_no_times() -> None:
    others = left("middle, FIN, streamed, starlette", 9.0, tokens_computed=24.0)
    lab = lab_with([9.0], [9.0], others, is_smoke=True)
    assert [verdict.stood for verdict in verdicts(lab)] == [None] * 4


@pytest.mark.parametrize(("n_steps", "stood"), [(1.5, True), (2.5, False)])
def test_stream_of_the_framework_is_judged_as_ours(n_steps: float, stood: bool) -> None:
    listening = left("middle, FIN, streamed, starlette", n_steps, tokens_computed=51.0)
    (verdict,) = of_others(lab_with([0.5], [1], listening))
    assert (verdict.stood, verdict.sentence) == (stood, f"worst {n_steps:.2f} steps of 1")


@pytest.mark.parametrize(
    "scenario",
    ["middle, FIN, plain, starlette", "middle, FIN, streamed, write-only", "prefill, RST, plain, write-only"],
)
@pytest.mark.parametrize(("n_computed", "stood"), [(100.0, True), (99.0, False)])
def test_who_does_not_listen_is_expected_to_compute_all(scenario: str, n_computed: float, stood: bool) -> None:
    (verdict,) = of_others(lab_with([0.5], [1], left(scenario, 90.0, tokens_computed=n_computed)))
    assert (verdict.stood, verdict.sentence) == (stood, f"{int(stood)} of 1 ran to their 100 tokens")
