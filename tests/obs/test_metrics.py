"""Facts become Prometheus samples with the names that dashboards are built on."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sluiceway.obs.metrics import Accumulated, Metrics, StreamsCensus
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
}


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample, its labels in the key."""
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_every_name_is_there_when_nothing_has_happened() -> None:
    """A dashboard finds its series from the first scrape on."""
    families = text_string_to_metric_families(Metrics().render().decode())
    assert {family.name: family.type for family in families} == NAMES


def test_gaps_and_dropped_messages_are_told_by_process() -> None:
    """A gap is what was said last; messages dropped add up over restarts of the process."""
    metrics = Metrics()
    for gap_s, n_dropped in ((0.5, 3), (0.25, 4), (0.0, 2)):
        metrics.process_measured("engine", gap_s, n_dropped)
    metrics.process_measured("api", 0.75, 0)
    values = samples(metrics)
    assert values["sluiceway_loop_longest_gap_seconds{process=engine}"] == 0.0
    assert values["sluiceway_loop_longest_gap_seconds{process=api}"] == 0.75
    assert values["sluiceway_dropped_messages_total{process=engine}"] == 6
    assert values["sluiceway_dropped_messages_total{process=api}"] == 0


def test_every_reason_is_there_when_nothing_has_ended() -> None:
    """At zero, so that a rate over it is right from the first end on."""
    values = samples(Metrics())
    assert all(values[f"sluiceway_requests_finished_total{{reason={reason.value}}}"] == 0 for reason in FinishReason)


def test_gauges_say_what_the_latest_snapshot_says() -> None:
    """All from one snapshot."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(running=9))
    metrics.engine_stepped(engine_stats(running=2, waiting=3, blocks_free=4, blocks_cached=5, blocks_total=16))
    values = samples(metrics)
    assert values["sluiceway_requests_running"] == 2
    assert values["sluiceway_requests_waiting"] == 3
    assert values["sluiceway_kv_blocks_free"] == 4
    assert values["sluiceway_kv_blocks_cached"] == 5
    assert values["sluiceway_kv_blocks_total"] == 16


def test_nothing_runs_when_the_engine_has_died() -> None:
    """A snapshot that was under way when it died does not bring it back."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(running=2, waiting=3))
    metrics.engine_died()
    metrics.engine_stepped(engine_stats(running=2))
    values = samples(metrics)
    assert (values["sluiceway_requests_running"], values["sluiceway_requests_waiting"]) == (0, 0)
    metrics.engine_started()
    metrics.engine_stepped(engine_stats(running=1))
    assert samples(metrics)["sluiceway_requests_running"] == 1


def test_counters_go_on_when_the_engine_starts_again() -> None:
    """Also where the new engine has already counted further than the old one."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(prompt_tokens_total=5, generated_tokens_total=7, wasted_tokens_total=1))
    metrics.engine_died()
    metrics.engine_started()
    metrics.engine_stepped(engine_stats(prompt_tokens_total=2, generated_tokens_total=10, wasted_tokens_total=0))
    values = samples(metrics)
    assert values["sluiceway_prompt_tokens_total"] == 7
    assert values["sluiceway_generated_tokens_total"] == 17
    assert values["sluiceway_wasted_tokens_total"] == 1


def test_drafts_are_counted_as_the_engine_counts_them() -> None:
    """Over a restart too; the quotient of the two is the acceptance."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(draft_tokens_total=8, accepted_draft_tokens_total=6))
    metrics.engine_died()
    metrics.engine_started()
    metrics.engine_stepped(engine_stats(draft_tokens_total=10, accepted_draft_tokens_total=7))
    values = samples(metrics)
    assert values["sluiceway_draft_tokens_total"] == 18
    assert values["sluiceway_accepted_draft_tokens_total"] == 13


def test_missing_tokens_are_counted_across_engines() -> None:
    """An engine that starts again counts from zero; the total goes on."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats(no_tokens_total=2))
    metrics.engine_died()
    metrics.engine_started()
    metrics.engine_stepped(engine_stats(no_tokens_total=1))
    assert samples(metrics)["sluiceway_no_tokens_total"] == 3


def test_the_time_of_the_engine_is_counted_by_part() -> None:
    """Over a restart too."""
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


def test_a_counter_goes_on_when_its_source_falls_back_unannounced() -> None:
    """What the source has counted since it began again is added."""
    counter = Accumulated()
    for value in (3, 10, 4):
        counter.advance_to(value)
    assert counter.total == 14


def test_requests_are_counted_by_how_they_ended() -> None:
    """Ends by reason, refusals by code."""
    metrics = Metrics()
    metrics.sequence_finished(FinishReason.CANCELLED)
    metrics.sequence_finished(FinishReason.CANCELLED)
    metrics.request_rejected("overloaded")
    metrics.request_rejected("overloaded")
    metrics.request_rejected("model_not_found")
    values = samples(metrics)
    assert values["sluiceway_requests_finished_total{reason=cancelled}"] == 2
    assert values["sluiceway_requests_rejected_total{code=overloaded}"] == 2
    assert values["sluiceway_requests_rejected_total{code=model_not_found}"] == 1


def test_tokens_are_delivered_or_wasted() -> None:
    """Waste is what the engine knows of and what found no reader here."""
    metrics = Metrics()
    metrics.tokens_delivered(5)
    metrics.tokens_dropped(2)
    metrics.engine_stepped(engine_stats(wasted_tokens_total=3))
    values = samples(metrics)
    assert values["sluiceway_delivered_tokens_total"] == 5
    assert values["sluiceway_wasted_tokens_total"] == 5


def test_a_step_is_measured_when_one_ran() -> None:
    """A snapshot without a step says nothing about the duration of steps."""
    metrics = Metrics()
    metrics.engine_stepped(engine_stats())
    metrics.engine_stepped(engine_stats())
    assert samples(metrics)["sluiceway_step_seconds_count"] == 0
    metrics.engine_stepped(engine_stats(step_s=0.02))
    values = samples(metrics)
    assert values["sluiceway_step_seconds_count"] == 1
    assert values["sluiceway_step_seconds_bucket{le=0.025}"] == 1
    assert values["sluiceway_step_seconds_bucket{le=0.01}"] == 0


def test_streams_are_counted_when_a_scrape_comes() -> None:
    """By whoever knows them."""
    metrics = Metrics()
    metrics.count_streams_by(lambda: StreamsCensus({"open": 2, "closing": 1}, 4, 5000, 30))
    values = samples(metrics)
    assert values["sluiceway_streams{state=open}"] == 2 and values["sluiceway_streams{state=closing}"] == 1
    assert values["sluiceway_stream_readers"] == 4
    assert (values["sluiceway_stream_backlog_bytes"], values["sluiceway_stream_backlog_events"]) == (5000, 30)


def test_releases_are_told_by_their_cause() -> None:
    """Those that happened."""
    metrics = Metrics()
    metrics.sequence_released(FinishReason.SLOW_CLIENT, 0.5)
    values = samples(metrics)
    assert values["sluiceway_close_to_release_seconds_sum{reason=slow_client}"] == 0.5
    assert "sluiceway_close_to_release_seconds_sum{reason=cancelled}" not in values


def test_what_became_of_readers_is_counted() -> None:
    """All of it is there from the first scrape on."""
    metrics = Metrics()
    metrics.stream_did("park")
    values = samples(metrics)
    assert values["sluiceway_stream_actions_total{action=park}"] == 1
    assert values["sluiceway_stream_actions_total{action=drop}"] == 0
