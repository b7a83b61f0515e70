"""The work of an engine between two scrapes."""

from __future__ import annotations

import pytest

from sluiceway.obs.metrics import Metrics
from sluiceway_lab.load.engine_work import engine_figures
from sluiceway_lab.load.record import Weights
from sluiceway_lab.load.target_server import Samples, parse_samples
from support.snapshots import engine_stats

WEIGHTS = Weights(dtype="bfloat16", parameters=1_000_000, head_parameters=250_000, step_bytes=2_000_000)


def scraped(metrics: Metrics) -> Samples:
    return parse_samples(metrics.render().decode())


def two_scrapes() -> tuple[Samples, Samples]:
    """Four steps of half a second between them. The first scrape has the same counts."""
    metrics = Metrics()
    metrics.engine_stepped(
        engine_stats(step_s=5.0, plan_s_total=1.0, model_s_total=4.0, prompt_tokens_total=9, generated_tokens_total=9)
    )
    before = scraped(metrics)
    for _ in range(4):
        metrics.engine_stepped(
            engine_stats(
                step_s=0.5,
                plan_s_total=1.5,
                model_s_total=5.6,
                commit_s_total=0.1,
                publish_s_total=0.2,
                prompt_tokens_total=109,
                generated_tokens_total=13,
            )
        )
    return before, scraped(metrics)


def test_time_is_shared_out() -> None:
    figures = engine_figures(*two_scrapes(), None)
    assert figures == pytest.approx(
        {
            "steps": 4,
            "step_mean_s": 0.5,
            "model_step_mean_s": 0.4,
            "overhead_step_mean_s": 0.2,
            "model_share": 1.6 / 2.4,
            "scheduler_share": 0.6 / 2.4,
            "delivery_share": 0.2 / 2.4,
        }
    )


def test_work_is_set_against_the_weights() -> None:
    """Bytes count once per step, operations per token, those of the head for generated tokens only."""
    figures = engine_figures(*two_scrapes(), WEIGHTS)
    assert figures["weights_gb_per_s"] == pytest.approx(4 * 2_000_000 / 1.6 / 1e9)
    assert figures["gflop_per_s"] == pytest.approx(2 * (750_000 * 104 + 250_000 * 4) / 1.6 / 1e9)


def test_nothing_is_said_when_no_step_ran() -> None:
    before, _ = two_scrapes()
    assert engine_figures(before, before, WEIGHTS) == {}
    assert engine_figures({}, {}, WEIGHTS) == {}
