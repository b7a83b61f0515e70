"""Metrics are rendered as Prometheus samples with stable names, and as the counters of `/stats`."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from sluiceway.obs.instruments import Counter, Labelled
from sluiceway.obs.metrics import Metrics, StreamsCensus, counter, counters
from sluiceway.types import FinishReason
from support.snapshots import engine_stats

NAMES = {
    "sluiceway_requests_running": "gauge",
    "sluiceway_requests_waiting": "gauge",
    "sluiceway_kv_blocks_free": "gauge",
    "sluiceway_kv_blocks_cached": "gauge",
    "sluiceway_kv_blocks_total": "gauge",
    "sluiceway_requests_finished": "counter",
    "sluiceway_requests_rejected": "counter",
    "sluiceway_connections_turned_away": "counter",
    "sluiceway_prompt_tokens": "counter",
    "sluiceway_generated_tokens": "counter",
    "sluiceway_draft_tokens": "counter",
    "sluiceway_accepted_draft_tokens": "counter",
    "sluiceway_no_tokens": "counter",
    "sluiceway_lost_sequences": "counter",
    "sluiceway_delivered_tokens": "counter",
    "sluiceway_wasted_tokens": "counter",
    "sluiceway_stream_actions": "counter",
    "sluiceway_loop_longest_gap_seconds": "gauge",
    "sluiceway_dropped_messages": "counter",
    "sluiceway_engine_seconds": "counter",
    "sluiceway_time_to_first_token_seconds": "histogram",
    "sluiceway_inter_token_seconds": "histogram",
    "sluiceway_step_seconds": "histogram",
    "sluiceway_close_to_release_seconds": "histogram",
    "sluiceway_streams": "gauge",
    "sluiceway_stream_readers": "gauge",
    "sluiceway_stream_backlog_bytes": "gauge",
    "sluiceway_stream_backlog_events": "gauge",
}


def samples(metrics: Metrics) -> dict[str, float]:
    """Return every sample; its labels are part of the key."""
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_every_metric_is_in_the_first_scrape() -> None:
    families = text_string_to_metric_families(Metrics().render().decode())
    assert {family.name: family.type for family in families} == NAMES


@dataclass(eq=False)
class MoreMetrics(Metrics):
    """The table of metrics with three more rows."""

    shy_readers: Counter = counter("Readers that never read.", stats="streams.shy_readers")
    odd_tokens: Labelled[Counter] = counters("Odd tokens, by parity.", "parity", ("odd", "even"), stats="odd")
    accepted_sequences: Counter = counter("Sequences admitted.", engine="accepted_total")


def test_new_metric_needs_one_row() -> None:
    """A new field is counted, scraped and shown in `/stats` without another line of code."""
    metrics = MoreMetrics()
    metrics.shy_readers.value += 2
    metrics.odd_tokens["odd"].value += 1
    metrics.engine_stepped(engine_stats(accepted_total=3))
    values = samples(metrics)
    assert values["sluiceway_shy_readers_total"] == 2
    assert values["sluiceway_odd_tokens_total{parity=odd}"] == 1
    assert values["sluiceway_accepted_sequences_total"] == 3
    stats = metrics.stats()
    assert stats["odd"] == {"odd": 1, "even": 0}
    assert (stats["streams"]["shy_readers"], stats["streams"]["actions"]["park"]) == (2, 0)


def test_stats_has_the_counters_of_its_page() -> None:
    metrics = Metrics()
    metrics.requests_rejected["overloaded"].value += 1
    assert metrics.stats() == {
        "finished": {reason.value: 0 for reason in FinishReason},
        "rejected": {"overloaded": 1},
        "streams": {
            "actions": {
                "pause": 0, "park": 0, "resume": 0, "drop": 0, "disconnect": 0, "detach": 0, "reattach": 0
            }
        },
        "tokens": {"generated": 0, "delivered": 0, "wasted": 0, "draft": 0, "accepted_draft": 0},
    }  # fmt: skip


def test_gaps_and_dropped_messages_have_a_series_for_each_process() -> None:
    """The gap is the latest one. Dropped messages add up over restarts of the process."""
    metrics = Metrics()
    for gap_s, n_dropped in ((0.5, 3), (0.25, 4), (0.0, 2)):
        metrics.process_measured("engine", gap_s, n_dropped)
    metrics.process_measured("api", 0.75, 0)
    values = samples(metrics)
    assert values["sluiceway_loop_longest_gap_seconds{process=engine}"] == 0.0
    assert values["sluiceway_loop_longest_gap_seconds{process=api}"] == 0.75
    assert values["sluiceway_dropped_messages_total{process=engine}"] == 6
    assert values["sluiceway_dropped_messages_total{process=api}"] == 0


def test_every_finish_reason_starts_at_zero() -> None:
    """So a rate over it is right from the first sequence on."""
    values = samples(Metrics())
    assert all(values[f"sluiceway_requests_finished_total{{reason={reason.value}}}"] == 0 for reason in FinishReason)


def test_gauges_show_the_latest_snapshot() -> None:
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(running=9))
    metrics.engine_stepped(engine_stats(running=2, waiting=3, blocks_free=4, blocks_cached=5, blocks_total=16))
    values = samples(metrics)
    assert values["sluiceway_requests_running"] == 2
    assert values["sluiceway_requests_waiting"] == 3
    assert values["sluiceway_kv_blocks_free"] == 4
    assert values["sluiceway_kv_blocks_cached"] == 5
    assert values["sluiceway_kv_blocks_total"] == 16


def test_gauges_are_zero_when_the_engine_has_died() -> None:
    """A snapshot that arrives after the death is ignored."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(running=2, waiting=3))
    assert samples(metrics)["sluiceway_requests_running"] == 2
    metrics.engine_died()
    metrics.engine_stepped(engine_stats(running=2))
    values = samples(metrics)
    assert (values["sluiceway_requests_running"], values["sluiceway_requests_waiting"]) == (0, 0)
    metrics.engine_started()
    metrics.engine_stepped(engine_stats(running=1))
    assert samples(metrics)["sluiceway_requests_running"] == 1


def test_counters_continue_when_the_engine_restarts() -> None:
    """Even if the new engine has already counted further than the old one."""
    metrics = Metrics()
    metrics.engine_stepped(
        engine_stats(
            prompt_tokens_total=5,
            generated_tokens_total=7,
            wasted_tokens_total=1,
            draft_tokens_total=8,
            accepted_draft_tokens_total=6,
            no_tokens_total=2,
        )
    )
    metrics.engine_died()
    metrics.engine_started()
    metrics.engine_stepped(
        engine_stats(
            prompt_tokens_total=2,
            generated_tokens_total=10,
            draft_tokens_total=10,
            accepted_draft_tokens_total=7,
            no_tokens_total=1,
        )
    )
    values = samples(metrics)
    assert values["sluiceway_prompt_tokens_total"] == 7
    assert values["sluiceway_generated_tokens_total"] == 17
    assert values["sluiceway_wasted_tokens_total"] == 1
    assert values["sluiceway_draft_tokens_total"] == 18
    assert values["sluiceway_accepted_draft_tokens_total"] == 13
    assert values["sluiceway_no_tokens_total"] == 3


def test_the_time_of_the_engine_is_counted_by_part() -> None:
    """Also over a restart."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(plan_s_total=0.25, model_s_total=3.0, commit_s_total=0.5, publish_s_total=1.0))
    metrics.engine_died()
    metrics.engine_started()
    metrics.engine_stepped(engine_stats(model_s_total=4.0))
    values = samples(metrics)
    parts = [
        values[f"sluiceway_engine_seconds_total{{part={part}}}"] for part in ("plan", "model", "commit", "publish")
    ]
    assert parts == [0.25, 7.0, 0.5, 1.0]


def test_requests_are_counted_by_reason_and_by_code() -> None:
    metrics = Metrics()
    metrics.requests_finished[FinishReason.CANCELLED].value += 1
    metrics.requests_finished[FinishReason.CANCELLED].value += 1
    for code in ("overloaded", "overloaded", "model_not_found"):
        metrics.requests_rejected[code].value += 1
    values = samples(metrics)
    assert values["sluiceway_requests_finished_total{reason=cancelled}"] == 2
    assert values["sluiceway_requests_rejected_total{code=overloaded}"] == 2
    assert values["sluiceway_requests_rejected_total{code=model_not_found}"] == 1


def test_wasted_tokens_of_engine_and_api_process_are_added() -> None:
    metrics = Metrics()
    metrics.delivered_tokens.value += 5
    metrics.wasted_tokens.value += 2
    metrics.engine_stepped(engine_stats(wasted_tokens_total=3))
    values = samples(metrics)
    assert values["sluiceway_delivered_tokens_total"] == 5
    assert values["sluiceway_wasted_tokens_total"] == 5


def test_a_snapshot_without_a_step_measures_no_step() -> None:
    metrics = Metrics()
    metrics.engine_stepped(engine_stats())
    metrics.engine_stepped(engine_stats())
    assert samples(metrics)["sluiceway_step_seconds_count"] == 0
    metrics.engine_stepped(engine_stats(step_s=0.02))
    values = samples(metrics)
    assert values["sluiceway_step_seconds_count"] == 1
    assert values["sluiceway_step_seconds_bucket{le=0.025}"] == 1
    assert values["sluiceway_step_seconds_bucket{le=0.01}"] == 0


def test_streams_are_counted_at_each_scrape() -> None:
    metrics = Metrics()
    metrics.count_streams_by(lambda: StreamsCensus({"open": 2, "closing": 1}, 4, 5000, 30))
    values = samples(metrics)
    assert values["sluiceway_streams{state=open}"] == 2 and values["sluiceway_streams{state=closing}"] == 1
    assert values["sluiceway_stream_readers"] == 4
    assert (values["sluiceway_stream_backlog_bytes"], values["sluiceway_stream_backlog_events"]) == (5000, 30)


def test_a_histogram_by_reason_shows_the_reasons_that_occurred() -> None:
    metrics = Metrics()
    metrics.close_to_release_seconds[FinishReason.SLOW_CLIENT].observe(0.5)
    values = samples(metrics)
    assert values["sluiceway_close_to_release_seconds_sum{reason=slow_client}"] == 0.5
    assert "sluiceway_close_to_release_seconds_sum{reason=cancelled}" not in values


def test_every_action_is_in_the_first_scrape() -> None:
    metrics = Metrics()
    metrics.stream_actions["park"].value += 1
    values = samples(metrics)
    assert values["sluiceway_stream_actions_total{action=park}"] == 1
    assert values["sluiceway_stream_actions_total{action=drop}"] == 0
