"""The server's numbers: facts in, Prometheus text out.

Gauges come from the engine's latest snapshot, so a scrape never waits for the engine and never sees a mixture. Counters
of the engine count from its start; here they go on over restarts. Requests are counted by sequence: a request with
three choices counts three times, as it does in the engine. No label value ever comes from a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sluiceway.obs.histogram import Histogram
from sluiceway.types import EngineStats, FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_ENGINE_PARTS = ("plan", "model", "commit", "publish")
_STREAM_ACTIONS = ("pause", "park", "resume", "drop", "disconnect", "detach", "reattach")
_RELEASE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Accumulated:
    """A counter that goes on where its source starts again from nothing."""

    __slots__ = ("_last", "total")

    def __init__(self) -> None:
        self._last: float = 0
        self.total: float = 0

    def advance_to(self, value: float) -> None:
        """The source says `value`; one that is below what it said before has started again."""
        self.total += value - self._last if value >= self._last else value
        self._last = value

    def restart(self) -> None:
        """The source is gone; the next one counts from nothing."""
        self._last = 0


@dataclass(frozen=True, slots=True)
class StreamsCensus:
    """What the responses of the process are in, and hold, now."""

    by_state: Mapping[str, int]
    readers: int
    backlog_bytes: int
    backlog_events: int


class Metrics:
    """What the API process knows. Methods are facts in the past tense; each costs about as much as an addition."""

    def __init__(self) -> None:
        self.time_to_first_token = Histogram(_FIRST_TOKEN_S)
        self.inter_token = Histogram(_INTER_TOKEN_S)
        self.step = Histogram(_STEP_S)
        self.close_to_release = {reason: Histogram(_RELEASE_S) for reason in FinishReason}
        """By why the sequence was ended from here."""
        self.stream_actions = dict.fromkeys(_STREAM_ACTIONS, 0)
        self._census: Callable[[], StreamsCensus] | None = None
        self.finished = dict.fromkeys(FinishReason, 0)
        self.rejected: dict[str, int] = {}
        self.turned_away = 0
        self.prompt_tokens = Accumulated()
        self.generated_tokens = Accumulated()
        self.engine_wasted_tokens = Accumulated()
        self.draft_tokens = Accumulated()
        self.accepted_draft_tokens = Accumulated()
        self.no_tokens = Accumulated()
        self.engine_seconds = {part: Accumulated() for part in _ENGINE_PARTS}
        self.longest_gap_s: dict[str, float] = {}
        self.dropped_messages: dict[str, Accumulated] = {}
        self.delivered_tokens = 0
        self.undelivered_tokens = 0
        self.lost_sequences = 0
        self.engine: EngineStats | None = None
        """The latest snapshot; None while no engine lives."""
        self._is_engine_down = False
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def engine_stepped(self, stats: EngineStats) -> None:
        """A snapshot arrived. One of an engine that is known to be dead says nothing about now and is ignored."""
        if self._is_engine_down:
            return
        if stats.step_s > 0.0:
            self.step.observe(stats.step_s)
        self.prompt_tokens.advance_to(stats.prompt_tokens_total)
        self.generated_tokens.advance_to(stats.generated_tokens_total)
        self.engine_wasted_tokens.advance_to(stats.wasted_tokens_total)
        self.draft_tokens.advance_to(stats.draft_tokens_total)
        self.accepted_draft_tokens.advance_to(stats.accepted_draft_tokens_total)
        self.no_tokens.advance_to(stats.no_tokens_total)
        for part, counter in self.engine_seconds.items():
            counter.advance_to(getattr(stats, f"{part}_s_total"))
        self.engine = stats

    def engine_died(self) -> None:
        """Nothing runs, waits or is cached any more."""
        self.engine = None
        self._is_engine_down = True
        tokens = (self.prompt_tokens, self.generated_tokens, self.engine_wasted_tokens)
        drafts = (self.draft_tokens, self.accepted_draft_tokens)
        for counter in (*tokens, *drafts, self.no_tokens, *self.engine_seconds.values()):
            counter.restart()

    def engine_started(self) -> None:
        """Snapshots count again."""
        self._is_engine_down = False

    def process_measured(self, process: str, longest_gap_s: float, n_dropped: int) -> None:
        """The longest gap of its loop lately, and how many messages it dropped since it started."""
        self.longest_gap_s[process] = longest_gap_s
        self.dropped_messages.setdefault(process, Accumulated()).advance_to(n_dropped)

    def sequence_finished(self, reason: FinishReason) -> None:
        self.finished[reason] += 1

    def sequence_released(self, reason: FinishReason, after_s: float) -> None:
        """The engine has let go what was cancelled here."""
        self.close_to_release[reason].observe(after_s)

    def stream_did(self, action: str) -> None:
        """One of the things that become of slow, lost and returning readers."""
        self.stream_actions[action] += 1

    def count_streams_by(self, census: Callable[[], StreamsCensus]) -> None:
        """What to ask, when a scrape comes, how the streams stand."""
        self._census = census

    def request_rejected(self, code: str) -> None:
        """`code` is a word of ours, never of a client's."""
        self.rejected[code] = self.rejected.get(code, 0) + 1

    def connection_turned_away(self) -> None:
        """It could not be served: no more files can be opened."""
        self.turned_away += 1

    def tokens_delivered(self, n_tokens: int) -> None:
        """Tokens whose text was handed to the transport."""
        self.delivered_tokens += n_tokens

    def tokens_dropped(self, n_tokens: int) -> None:
        """Tokens that came this far and found no reader."""
        self.undelivered_tokens += n_tokens

    @property
    def wasted_tokens(self) -> float:
        """Tokens computed for nobody, wherever that was noticed."""
        return self.engine_wasted_tokens.total + self.undelivered_tokens

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry on every scrape."""
        yield from self._gauges()
        yield from self._counters()
        yield _histogram("time_to_first_token_seconds", "From request to first token.", self.time_to_first_token)
        yield _histogram("inter_token_seconds", "Gap between tokens of one sequence.", self.inter_token)
        yield _histogram("step_seconds", "Duration of an engine step.", self.step)
        released = HistogramMetricFamily(
            "sluiceway_close_to_release_seconds", "From the end of a stream to the engine's release.", labels=["reason"]
        )
        for reason, values in self.close_to_release.items():
            if values.count:
                released.add_metric([reason.value], values.cumulative(), values.total)
        yield released
        if self._census is not None:
            yield from _census_gauges(self._census())

    def _gauges(self) -> Iterator[Metric]:
        stats = self.engine
        yield _gauge("requests_running", "Sequences in the running batch.", stats.running if stats else 0)
        yield _gauge("requests_waiting", "Sequences that wait for admission.", stats.waiting if stats else 0)
        yield _gauge("kv_blocks_free", "Free blocks of the KV cache.", stats.blocks_free if stats else 0)
        yield _gauge("kv_blocks_cached", "Blocks kept for reuse by later prompts.", stats.blocks_cached if stats else 0)
        yield _gauge("kv_blocks_total", "All blocks of the KV cache.", stats.blocks_total if stats else 0)

        gaps = GaugeMetricFamily(
            "sluiceway_loop_longest_gap_seconds",
            "Longest time of late in which a loop stood still.",
            labels=["process"],
        )
        for process, gap_s in self.longest_gap_s.items():
            gaps.add_metric([process], gap_s)
        yield gaps

    def _counters(self) -> Iterator[Metric]:
        finished = CounterMetricFamily(
            "sluiceway_requests_finished", "Sequences that ended, by reason.", labels=["reason"]
        )
        for reason, count in self.finished.items():
            finished.add_metric([reason.value], count)
        yield finished
        rejected = CounterMetricFamily("sluiceway_requests_rejected", "Requests refused, by code.", labels=["code"])
        for code, count in self.rejected.items():
            rejected.add_metric([code], count)
        yield rejected
        dropped = CounterMetricFamily(
            "sluiceway_dropped_messages", "Messages between processes that could not be read.", labels=["process"]
        )
        for process, counter in self.dropped_messages.items():
            dropped.add_metric([process], counter.total)
        yield dropped
        yield _counter(
            "connections_turned_away", "Connections that could not be served for lack of open files.", self.turned_away
        )
        actions = CounterMetricFamily(
            "sluiceway_stream_actions", "What became of slow, lost and returning readers.", labels=["action"]
        )
        for action, count in self.stream_actions.items():
            actions.add_metric([action], count)
        yield actions
        seconds = CounterMetricFamily(
            "sluiceway_engine_seconds", "Time of the engine, by part of the round.", labels=["part"]
        )
        for part, counter in self.engine_seconds.items():
            seconds.add_metric([part], counter.total)
        yield seconds
        yield _counter("prompt_tokens", "Prompt tokens of admitted sequences.", self.prompt_tokens.total)
        yield _counter("generated_tokens", "Tokens generated.", self.generated_tokens.total)
        yield _counter("draft_tokens", "Tokens that speculation guessed.", self.draft_tokens.total)
        yield _counter(
            "accepted_draft_tokens", "Guessed tokens that were right: none of them took a step of its own.",
            self.accepted_draft_tokens.total,
        )  # fmt: skip
        yield _counter(
            "no_tokens", "Sequences that ended because the model gave no usable logit.", self.no_tokens.total
        )
        yield _counter(
            "lost_sequences", "Sequences that were ended since a message of theirs was lost.", self.lost_sequences
        )
        yield _counter("delivered_tokens", "Tokens handed to the transport.", self.delivered_tokens)
        yield _counter("wasted_tokens", "Tokens computed for nobody.", self.wasted_tokens)


def _census_gauges(census: StreamsCensus) -> Iterator[Metric]:
    states = GaugeMetricFamily("sluiceway_streams", "Responses that are held, by state.", labels=["state"])
    for state, count in census.by_state.items():
        states.add_metric([state], count)
    yield states
    yield _gauge("stream_readers", "Clients that responses are written to.", census.readers)
    yield _gauge("stream_backlog_bytes", "Bytes of events that are held for readers.", census.backlog_bytes)
    yield _gauge("stream_backlog_events", "Events that are held for readers.", census.backlog_events)


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"sluiceway_{name}", about, value=value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"sluiceway_{name}", about, value=value)


def _histogram(name: str, about: str, values: Histogram) -> Metric:
    return HistogramMetricFamily(f"sluiceway_{name}", about, buckets=values.cumulative(), sum_value=values.total)
