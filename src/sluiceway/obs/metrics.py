"""The metrics. Each is one row, from which `/metrics`, the counters of `/stats` and the page of the docs are made.

A scrape never waits for the engine, and its gauges of the engine all come from one snapshot. Requests are counted by
sequence: a request with three choices counts three times, as it does in the engine. No label value comes from a client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from sluiceway.obs.instruments import Counter, GaugeValue, Histogram, Labelled
from sluiceway.types import EngineStats, FinishReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)
_STEP_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_RELEASE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
HeldT = TypeVar("HeldT")

_REASONS = tuple(reason.value for reason in FinishReason)


@dataclass(frozen=True, slots=True)
class StreamsCensus:
    """The responses of the API process by state, and what they hold."""

    by_state: Mapping[str, int]
    readers: int
    backlog_bytes: int
    backlog_events: int


@dataclass(frozen=True, slots=True)
class MetricRow:
    """What is known of one metric besides its value."""

    name: str
    kind: str
    """`counter`, `gauge` or `histogram`."""
    meaning: str
    """Shown by a scrape and on the page of the docs."""
    details: str = ""
    """Shown on the page of the docs only."""
    label: str = ""
    stats: str = ""
    """Where `/stats` shows it, as a dotted path: `tokens.generated`."""
    engine: str = ""
    """The field of `EngineStats` that has it. With a label, the label's value replaces `{}` in it."""
    streams: str = ""
    """The field of `StreamsCensus` that has it."""

    @property
    def scraped_name(self) -> str:
        """Its name in a scrape, where a counter's ends with `_total`."""
        return f"sluiceway_{self.name}" + ("_total" if self.kind == "counter" else "")


def counter(meaning: str, **extra: str) -> Counter:
    return _row("counter", Counter, meaning, extra)


def counters(meaning: str, label: str, values: Iterable[str] | None = None, **extra: str) -> Labelled[Counter]:
    return _row("counter", lambda: Labelled(Counter, values), meaning, extra | {"label": label})


def gauge(meaning: str, **extra: str) -> GaugeValue:
    return _row("gauge", GaugeValue, meaning, extra)


def gauges(meaning: str, label: str, **extra: str) -> Labelled[GaugeValue]:
    return _row("gauge", lambda: Labelled(GaugeValue), meaning, extra | {"label": label})


def histogram(meaning: str, bounds: Sequence[float], **extra: str) -> Histogram:
    return _row("histogram", lambda: Histogram(bounds), meaning, extra)


def histograms(
    meaning: str, bounds: Sequence[float], label: str, values: Iterable[str], **extra: str
) -> Labelled[Histogram]:
    return _row("histogram", lambda: Labelled(lambda: Histogram(bounds), values), meaning, extra | {"label": label})


def _row(kind: str, make: Callable[[], HeldT], meaning: str, extra: Mapping[str, str]) -> HeldT:
    row: HeldT = field(default_factory=make, metadata={"kind": kind, "meaning": meaning, **extra})
    return row


@dataclass(eq=False)
class Metrics:
    """Holds every metric of the server, one field each: the name of the field is the metric's, after `sluiceway_`.

    The API process counts in the fields directly (`metrics.delivered_tokens.value += 3`). Fields with `engine` follow
    the snapshots of the engine and continue over its restarts; those with `streams` are read when a scrape comes.
    """

    requests_running: GaugeValue = gauge("Sequences in the running batch.", engine="running")
    requests_waiting: GaugeValue = gauge("Sequences that wait for admission.", engine="waiting")
    kv_blocks_free: GaugeValue = gauge("Free blocks of the KV cache.", engine="blocks_free")
    kv_blocks_cached: GaugeValue = gauge(
        "Blocks kept for reuse by later prompts.",
        details="Always 0, because every prompt is computed from its start.",
        engine="blocks_cached",
    )
    kv_blocks_total: GaugeValue = gauge("All blocks of the KV cache.", engine="blocks_total")
    loop_longest_gap_seconds: Labelled[GaugeValue] = gauges(
        "Longest recent time in which the event loop of a process did not run.",
        "process",
        details="Processes: `api`, `tokenizer`, `engine`, `supervisor`. Recent means the last 30 to 60 seconds. For "
        "the engine it is the longest time between two looks for messages, mostly the length of a step. Busy loops are "
        "measured to within 50 ms, idle ones to within 250 ms.",
    )
    requests_finished: Labelled[Counter] = counters(
        "Sequences that finished, by reason.",
        "reason",
        _REASONS,
        stats="finished",
        details="`stop`; `length`; `disconnected`: the client closed its connection; `cancelled`: by "
        "`POST /v1/streams/{id}/cancel`; `grace_expired`: detached, and no reader came back in time; `slow_client`; "
        "`deadline`: not used yet, since requests have no deadline; `draining`; `error`.",
    )
    requests_rejected: Labelled[Counter] = counters("Requests refused, by error code.", "code", stats="rejected")
    dropped_messages: Labelled[Counter] = counters(
        "Messages between processes that could not be read and were dropped.",
        "process",
        details="They are junk on the socket files, which only processes of the same user can write.",
    )
    connections_turned_away: Counter = counter(
        "Connections that could not be served because no more files can be opened.",
        details="They got a 503, or nothing.",
    )
    stream_actions: Labelled[Counter] = counters(
        "What the server did about slow, lost and returning readers.",
        "action",
        ("pause", "park", "resume", "drop", "disconnect", "detach", "reattach"),
        stats="streams.actions",
        details="`pause`, `park` and `resume`: it did this to the sequences of a stream; `drop`: it ended a reader "
        "that was too slow; `disconnect`: it closed the connection of a dropped reader that did not take its last "
        "event; `detach`: the last reader left; `reattach`: a reader came.",
    )
    engine_seconds: Labelled[Counter] = counters(
        "Time of the engine process, by part of a round.",
        "part",
        ("plan", "model", "commit", "publish"),
        engine="{}_s_total",
        details="`plan`: handle what arrived and choose the rows; `model`: compute and sample; `commit`: record "
        "the tokens; `publish`: send them, and everything else until the next round.",
    )
    prompt_tokens: Counter = counter("Prompt tokens of admitted sequences.", engine="prompt_tokens_total")
    generated_tokens: Counter = counter("Tokens generated.", engine="generated_tokens_total", stats="tokens.generated")
    delivered_tokens: Counter = counter("Tokens handed to the transport.", stats="tokens.delivered")
    wasted_tokens: Counter = counter(
        "Tokens that were computed and that no reader could get.",
        engine="wasted_tokens_total",
        stats="tokens.wasted",
        details="The reader had left, or a stop string had ended the answer. Tokens that the engine itself drops are "
        "not counted as generated.",
    )
    draft_tokens: Counter = counter(
        "Tokens that speculation guessed.",
        engine="draft_tokens_total",
        stats="tokens.draft",
        details="The acceptance rate is the next metric divided by this one.",
    )
    accepted_draft_tokens: Counter = counter(
        "Guessed tokens that were right, so that no step of their own was needed.",
        engine="accepted_draft_tokens_total",
        stats="tokens.accepted_draft",
    )
    no_tokens: Counter = counter(
        "Sequences that finished because the model gave no usable logit.",
        engine="no_tokens_total",
        details="They end with the error `model_fault`: every logit of the next token was NaN or minus infinity, so "
        "the weights or their precision are broken.",
    )
    lost_sequences: Counter = counter(
        "Sequences that were ended because a message about them was lost.",
        details="Neither the tokenizer nor the engine knew them. They end with the error `request_lost`.",
    )
    time_to_first_token_seconds: Histogram = histogram("Time from a request to its first token (TTFT).", _TTFT_S)
    inter_token_seconds: Histogram = histogram(
        "Inter-token latency (ITL): time between two tokens of one sequence.",
        _ITL_S,
        details="Tokens of one step arrive together and count as one.",
    )
    step_seconds: Histogram = histogram("Duration of an engine step.", _STEP_S)
    close_to_release_seconds: Labelled[Histogram] = histograms(
        "Time from when a sequence was cancelled until the engine released its blocks, by reason.",
        _RELEASE_S,
        "reason",
        _REASONS,
    )
    streams: Labelled[GaugeValue] = gauges(
        "Streams that are held, by state.",
        "state",
        streams="by_state",
        details="States: `open`, `detached`, `draining`, `closing`, `closed`.",
    )
    stream_readers: GaugeValue = gauge("Clients that responses are written to.", streams="readers")
    stream_backlog_bytes: GaugeValue = gauge(
        "Bytes of events that are held for readers, including those kept for a replay.", streams="backlog_bytes"
    )
    stream_backlog_events: GaugeValue = gauge(
        "Events that are held for readers, including those kept for a replay.", streams="backlog_events"
    )

    def __post_init__(self) -> None:
        self.engine: EngineStats | None = None
        """The latest snapshot; None while no engine runs."""
        self._is_engine_down = False
        self._census: Callable[[], StreamsCensus] | None = None
        self._rows = rows_of(type(self))
        self._followers, names = zip(*self._engine_counters(), strict=True)
        self._totals_of = attrgetter(*names)
        self._last_totals: tuple[float, ...] = (0,) * len(names)
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def engine_stepped(self, stats: EngineStats) -> None:
        """Take a snapshot. It is ignored while the engine is known to be dead, as it is out of date then."""
        if self._is_engine_down:
            return
        if stats.step_s > 0.0:
            self.step_seconds.observe(stats.step_s)
        totals = self._totals_of(stats)
        for counter, total, last in zip(self._followers, totals, self._last_totals, strict=True):
            # A total that has fallen has restarted from zero. No counter is called, since this runs with each step.
            counter.value += total - last if total >= last else total
        self._last_totals = totals
        self.engine = stats

    def engine_died(self) -> None:
        """Show an engine that holds nothing, and ignore snapshots until the next one starts."""
        self.engine = None
        self._is_engine_down = True
        self._last_totals = (0,) * len(self._followers)

    def engine_started(self) -> None:
        """Take snapshots again."""
        self._is_engine_down = False

    def process_measured(self, process: str, longest_gap_s: float, n_dropped: int) -> None:
        """Take the recent longest gap of a process's loop, and how many messages it has dropped since its start."""
        self.loop_longest_gap_seconds[process].value = longest_gap_s
        self.dropped_messages[process].follow(n_dropped)

    def count_streams_by(self, census: Callable[[], StreamsCensus]) -> None:
        """Set what counts the streams when a scrape comes."""
        self._census = census

    def stats(self) -> dict[str, Any]:
        """The counters that `/stats` shows, nested as they are there."""
        whole: dict[str, Any] = {}
        for row in self._rows:
            if row.stats:
                *path, name = row.stats.split(".")
                section = whole
                for key in path:
                    section = section.setdefault(key, {})
                held = getattr(self, row.name)
                values = {key: counter.value for key, counter in held.items()} if row.label else held.value
                section[name] = values
        return whole

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry on every scrape."""
        self._read_gauges()
        for row in self._rows:
            family: Metric = _FAMILIES[row.kind](
                f"sluiceway_{row.name}", row.meaning, labels=[row.label] if row.label else []
            )
            held = getattr(self, row.name)
            for labels, instrument in (([key], one) for key, one in held.items()) if row.label else [([], held)]:
                _add_samples(family, labels, instrument)
            yield family

    def _engine_counters(self) -> Iterator[tuple[Counter, str]]:
        """Every counter that follows the engine, with its field of `EngineStats`."""
        for row in self._rows:
            held = getattr(self, row.name)
            if row.kind == "counter" and row.engine and row.label:
                yield from ((counter, row.engine.format(value)) for value, counter in held.items())
            elif row.kind == "counter" and row.engine:
                yield held, row.engine

    def _read_gauges(self) -> None:
        census = self._census() if self._census is not None else None
        for row in self._rows:
            held = getattr(self, row.name)
            if row.kind == "gauge" and row.engine:
                held.value = getattr(self.engine, row.engine) if self.engine is not None else 0
            elif row.streams and census is not None and row.label:
                for value, n_streams in getattr(census, row.streams).items():
                    held[value].value = n_streams
            elif row.streams and census is not None:
                held.value = getattr(census, row.streams)


def rows_of(metrics: type[Metrics]) -> tuple[MetricRow, ...]:
    """The table of metrics, made from the fields of the class."""
    return tuple(MetricRow(row.name, **row.metadata) for row in dataclasses.fields(metrics))


_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _add_samples(family: Any, labels: Sequence[str], instrument: Counter | GaugeValue | Histogram) -> None:
    if not isinstance(instrument, Histogram):
        family.add_metric(labels, instrument.value)
    elif instrument.count or not labels:
        family.add_metric(labels, instrument.cumulative(), instrument.total)
