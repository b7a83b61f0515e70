"""A record for a person: what was measured, beside what the machine gives, and beside the other server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from sluiceway.lab.load.record import Floor, Record, Summary
from sluiceway.lab.load.statistics import Spread


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of the record: its heading, its unit, and what of the unit's size it is shown in."""

    figure: str
    heading: str
    scale: float = 1.0
    digits: int = 1


_MS = 1e3
_SPEED = "tokens_per_s"
_STREAMS = (
    _Column(_SPEED, "tokens/s", digits=0),
    _Column("makespan_s", "makespan s", digits=2),
    _Column("first_token_min_s", "first token ms, min", _MS, 0),
    _Column("first_token_p50_s", "p50", _MS, 0),
    _Column("first_token_p99_s", "p99", _MS, 0),
    _Column("gap_p50_s", "gap ms, p50", _MS),
    _Column("gap_p99_s", "p99", _MS),
    _Column("gap_max_s", "max", _MS, 0),
    _Column("bytes_per_token", "bytes/token", digits=0),
    _Column("chunks_per_token", "chunks/token", digits=2),
)
_ENGINE = (
    _Column("model_step_mean_s", "a step's model ms", _MS, 2),
    _Column("overhead_step_mean_s", "all else ms", _MS, 2),
    _Column("model_share", "model + sampler %", 100),
    _Column("scheduler_share", "scheduler %", 100),
    _Column("delivery_share", "delivery %", 100),
    _Column("weights_gb_per_s", "weights GB/s"),
    _Column("gflop_per_s", "GFLOP/s", digits=0),
)
_OTHERS = (
    _Column("prompt_tokens_per_s", "prompt tokens/s", digits=0),
    _Column("joiner_first_token_s", "joiner's first token ms", _MS, 0),
    _Column("resident_longest_gap_s", "residents' longest gap ms", _MS, 0),
    _Column("resident_longest_gap_before_s", "before it ms", _MS, 0),
    _Column("until_idle_s", "until nothing runs ms", _MS),
    _Column("ready_s", "start to ready s", digits=2),
)
_ONE_EACH = (0.95, 1.05)
"""Events a token between which the two are as good as the same: half a character makes no event."""
_STREAM_SCENARIOS = ("together", "alone")


def show(record: Record, console: Console) -> None:
    """Medians, with minimum and maximum where there were several repeats."""
    streams = [one for one in record.summary if one.scenario in _STREAM_SCENARIOS]
    others = [one for one in record.summary if one.scenario not in _STREAM_SCENARIOS]
    for title, columns, rows in (
        ("Streams", _STREAMS, streams),
        ("Processor seconds", _cpu_columns(streams), streams),
        ("Engine", _ENGINE, streams + others),
        ("Beside streams", _OTHERS, others),
        ("Memory, MB (PSS: what is shared is divided)", _memory_columns(others), others),
    ):
        _show_table(console, title, columns, rows)
    for line in (
        *_floor_lines(record.floor),
        *_batching_lines(record.summary),
        *_ratio_lines(record),
        *_warnings(record),
    ):
        console.print(line, highlight=False, markup=False)


def _show_table(console: Console, title: str, columns: Sequence[_Column], rows: Sequence[Summary]) -> None:
    """Only rows and columns that have something to say."""
    known = [column for column in columns if any(column.figure in row.figures for row in rows)]
    if not known:
        return
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("run")
    for column in known:
        table.add_column(column.heading, justify="right")
    for row in rows:
        if any(column.figure in row.figures for column in known):
            table.add_row(_place(row), *(_cell(row.figures.get(column.figure), column) for column in known))
    console.print(table)


def _cpu_columns(rows: Sequence[Summary]) -> list[_Column]:
    """One for each process that any of the servers has."""
    names = dict.fromkeys(name for row in rows for name in row.figures if name.startswith("cpu_"))
    per_chunk = _Column("cpu_api_per_chunk_s", "api µs/chunk", 1e6, 0)
    processes = [_Column(name, name.removeprefix("cpu_").removesuffix("_s"), digits=2) for name in names]
    return [column for column in processes if column.figure != per_chunk.figure] + [per_chunk]


def _memory_columns(rows: Sequence[Summary]) -> list[_Column]:
    names = dict.fromkeys(name for row in rows for name in row.figures if name.startswith("pss_"))
    processes = [
        _Column(name, name.removeprefix("pss_").removesuffix("_bytes"), 1e-6, 0)
        for name in names
        if name != "pss_bytes"
    ]
    return [*processes, _Column("pss_bytes", "all", 1e-6, 0), _Column("rss_bytes", "all, RSS", 1e-6, 0)]


def _place(row: Summary) -> str:
    return f"{row.subject}, {row.scenario}" + (f" {row.streams}" if row.streams else "")


def _cell(spread: Spread | None, column: _Column) -> str:
    if spread is None:
        return ""
    shown: Callable[[float], str] = lambda value: f"{value * column.scale:,.{column.digits}f}"  # noqa: E731
    if spread.n == 1:
        return shown(spread.median)
    return f"{shown(spread.median)} ({shown(spread.min)}-{shown(spread.max)})"


def _floor_lines(floor: Floor | None) -> Iterator[str]:
    if floor is not None:
        yield (
            f"The machine ({floor.device}, {floor.threads} threads): memory {floor.memory_gb_per_s:.1f} GB/s, "
            f"products {floor.bfloat16_gflop_per_s:,.0f} GFLOP/s in bfloat16, "
            f"{floor.float32_gflop_per_s:,.0f} in float32."
        )


def _batching_lines(summary: Sequence[Summary]) -> Iterator[str]:
    """What batching gives, in the numbers that it is made of."""
    alone = {
        one.subject: one.figures[_SPEED].median for one in summary if one.scenario == "alone" and _SPEED in one.figures
    }
    for one in summary:
        if "over_alone" in one.figures:
            batched, single = one.figures[_SPEED].median, alone[one.subject]
            yield (
                f"{one.subject}: {one.streams} streams batched {batched:,.1f} tokens/s, one after another "
                f"{single:,.1f} tokens/s, ratio {one.figures['over_alone'].median:.2f}."
            )


def _ratio_lines(record: Record) -> Iterator[str]:
    shown = ("tokens_per_s", "first_token_p50_s", "gap_p50_s", "prompt_tokens_per_s", "resident_longest_gap_s")
    names = " / ".join(subject.name for subject in record.subjects)
    for ratio in record.ratios:
        parts = [
            f"{figure} {spread.median:.2f} ({spread.min:.2f}-{spread.max:.2f})"
            for figure in (*shown, "until_idle_s", "pss_bytes")
            if (spread := ratio.figures.get(figure)) is not None
        ]
        if parts:
            yield f"{names}, {ratio.scenario} {ratio.streams}: " + ", ".join(parts)


def _warnings(record: Record) -> Iterator[str]:
    """What makes a figure mean less than it seems to."""
    for one in record.summary:
        chunks, short = one.figures.get("chunks_per_token"), one.figures.get("short_answers")
        if chunks is not None and not _ONE_EACH[0] <= chunks.median <= _ONE_EACH[1]:
            yield f"{_place(one)}: {chunks.median:.2f} events a token, so its gaps are not those between tokens"
        if short is not None and short.max > 0:
            yield f"{_place(one)}: up to {short.max:.0f} answers ended early"
    for run in record.runs:
        for sentence, n in {error: run.errors.count(error) for error in run.errors}.items():
            yield f"{run.subject}, {run.scenario} {run.streams}, repeat {run.repeat}: {n} failed: {sentence}"
