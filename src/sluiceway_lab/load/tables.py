"""Prints a record of `bench`: what was measured, next to the floor of the machine and the other server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from sluiceway_lab.load.record import Floor, Ratio, Record, Run, Spread, Summary, Weights


@dataclass(frozen=True, slots=True)
class Column:
    """A figure as a column: its heading, the factor to its unit, and its digits.

    With `is_spread` the cell also has the least and the greatest value. Few columns have it, so that a table fits a
    screen.
    """

    figure: str
    heading: str
    scale: float = 1.0
    digits: int = 1
    is_spread: bool = False

    def cell(self, spread: Spread | None) -> str:
        """Return the text of a cell; empty without a value."""
        if spread is None:
            return ""
        median, least, most = (
            f"{value * self.scale:,.{self.digits}f}" for value in (spread.median, spread.min, spread.max)
        )
        return f"{median} ({least}-{most})" if self.is_spread and spread.n > 1 else median


_MS = 1e3
_SPEED = "tokens_per_s"
_MEMORY = "pss_bytes"
_STREAMS = (
    Column(_SPEED, "tokens/s", digits=0, is_spread=True),
    Column("makespan_s", "makespan s", digits=2),
    Column("first_token_min_s", "TTFT ms, min", _MS, 0),
    Column("first_token_p50_s", "p50", _MS, 0),
    Column("first_token_p99_s", "p99", _MS, 0),
    Column("itl_p50_s", "ITL ms, p50", _MS),
    Column("itl_p99_s", "p99", _MS),
    Column("itl_max_s", "max", _MS, 0),
    Column("bytes_per_token", "bytes a token", digits=0),
)
_OTHERS = (
    Column("prompt_tokens_per_s", "prompt tokens/s", 1.0, 0, True),
    Column("joiner_first_token_s", "joiner's TTFT ms", _MS, 0, True),
    Column("resident_stall_s", "stall of others ms", _MS, 0, True),
    Column("resident_stall_before_s", "before it ms", _MS, 0, True),
    Column("until_idle_s", "until idle ms", _MS, 1, True),
    Column("requests_per_s", "requests/s", 1.0, 0, True),
    Column("ready_s", "start to ready s", 1.0, 2, True),
)
_STREAM_RATIOS = (
    Column(_SPEED, "tokens/s", digits=2, is_spread=True),
    Column("first_token_p50_s", "TTFT", digits=2, is_spread=True),
    Column("itl_p50_s", "itl", digits=2, is_spread=True),
    Column("itl_p99_s", "ITL p99", digits=2, is_spread=True),
    Column("bytes_per_token", "bytes a token", digits=2),
    Column("cpu_server_s", "processor time", digits=2),
)
_OTHER_RATIOS = (
    Column("prompt_tokens_per_s", "prompt tokens/s", digits=2, is_spread=True),
    Column("joiner_first_token_s", "joiner's TTFT", digits=2, is_spread=True),
    Column("resident_stall_s", "stall of others", digits=2, is_spread=True),
    Column("until_idle_s", "until idle", digits=2, is_spread=True),
    Column("requests_per_s", "requests/s", digits=2, is_spread=True),
    Column(_MEMORY, "memory", digits=2),
)
PLOTTED = (
    Column(_SPEED, "tokens/s"),
    Column("itl_p50_s", "ITL ms, p50", _MS),
    Column("itl_p99_s", "ITL ms, p99", _MS),
)
"""The figures that `bench --plot` draws."""
_ONE_EACH = (0.95, 1.05)
"""Within these limits, events and tokens count as the same. An event cannot end within a character."""
_STREAM_SCENARIOS = ("together", "together_short", "alone")

_Place = TypeVar("_Place", Summary, Ratio)
_Row = tuple[str, Mapping[str, Spread]]
"""The name of a row, and its figures."""


def show(record: Record, console: Console) -> None:
    """Print medians. Where repeats exist, the main columns also have least and greatest."""
    streams, others = _divided(record.summary)
    show_table(console, "Streams", _STREAMS, _rows(streams))
    for server in record.servers:
        own = [row for row in streams if row.server == server.name]
        show_table(console, f"Processor seconds, {server.name}", _cpu_columns(own), _rows(own))
    show_table(console, "Engine, a step", _engine_columns(record.floor, record.weights), _rows(record.summary))
    show_table(console, "Other scenarios", _OTHERS, _rows(others))
    for server in record.servers:
        own = [row for row in others if row.server == server.name]
        title = f"Memory of {server.name}, MB (PSS: what is shared is divided)"
        show_table(console, title, _memory_columns(own), _rows(own))
    title = " over ".join(server.name for server in record.servers) + " (2.00: twice as much)"
    for columns, ratios in zip((_STREAM_RATIOS, _OTHER_RATIOS), _divided(record.ratios), strict=True):
        show_table(console, title, columns, [(one.place, one.figures) for one in ratios])
    for line in (
        *_floor_lines(record.floor),
        *_batching_lines(record.summary),
        *_soak_lines(record.runs),
        *_warnings(record),
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _divided(rows: Sequence[_Place]) -> tuple[list[_Place], list[_Place]]:
    """Separate plain streams from the other scenarios."""
    streams = [row for row in rows if row.scenario in _STREAM_SCENARIOS]
    return streams, [row for row in rows if row.scenario not in _STREAM_SCENARIOS]


def _rows(summary: Sequence[Summary]) -> list[_Row]:
    return [(row.place, row.figures) for row in summary]


def show_table(console: Console, title: str, columns: Sequence[Column], rows: Sequence[_Row]) -> None:
    """Print the rows and columns that have values."""
    known = [column for column in columns if any(column.figure in figures for _, figures in rows)]
    if not known:
        return
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("run", no_wrap=True)
    for column in known:
        table.add_column(column.heading, justify="right", overflow="fold")
    for place, figures in rows:
        if any(column.figure in figures for column in known):
            table.add_row(place, *(column.cell(figures.get(column.figure)) for column in known))
    console.print(table)
    console.print()


def _engine_columns(floor: Floor | None, weights: Weights | None) -> list[Column]:
    """Compare with the floor of the machine, if it was measured, in the format of the model's weights."""
    columns = [
        Column("step_mean_s", "ms", _MS, 2, True),
        Column("model_step_mean_s", "model ms", _MS, 2),
        Column("overhead_step_mean_s", "rest ms", _MS, 2),
        Column("model_share", "model %", 100),
        Column("scheduler_share", "plan %", 100),
        Column("delivery_share", "send %", 100),
        Column("weights_gb_per_s", "GB/s read"),
    ]
    products = Column("gflop_per_s", "GFLOP/s", digits=0)
    if floor is None or weights is None:
        return [*columns, products]
    computed = floor.float32_gflop_per_s if weights.dtype == "float32" else floor.bfloat16_gflop_per_s
    read = Column("weights_gb_per_s", "of the floor %", 100 / floor.memory_gb_per_s, 0)
    return [*columns, read, products, Column("gflop_per_s", "of the floor %", 100 / computed, 0)]


def _cpu_columns(rows: Sequence[Summary]) -> list[Column]:
    """The client, the whole server, each of its processes, and the cost of an event."""
    per_event = [
        Column("cpu_api_per_chunk_s", "api µs/chunk", 1e6, 0),
        Column("cpu_api_per_further_chunk_s", "µs/further chunk", 1e6, 0),
        Column("cpu_api_per_request_s", "µs/request", 1e6, 0),
        Column("cpu_tokenizer_per_token_s", "tokenizer µs/token", 1e6, 0),
    ]
    known = dict.fromkeys(name for row in rows for name in row.figures if name.startswith("cpu_"))
    names = dict.fromkeys(["cpu_client_s", "cpu_server_s", *known])
    processes = [Column(name, name.removeprefix("cpu_").removesuffix("_s"), digits=2) for name in names]
    return [column for column in processes if "_per_" not in column.figure] + per_event


def _memory_columns(rows: Sequence[Summary]) -> list[Column]:
    names = dict.fromkeys(name for row in rows for name in row.figures if name.startswith("pss_"))
    processes = [Column(name, _process_of(name), 1e-6, 0, True) for name in names if name != _MEMORY]
    return [*processes, Column(_MEMORY, "all", 1e-6, 0, True), Column("rss_bytes", "all, RSS", 1e-6, 0)]


def _floor_lines(floor: Floor | None) -> Iterator[str]:
    if floor is not None:
        yield (
            f"The machine ({floor.device}, {floor.threads} threads): memory {floor.memory_gb_per_s:.1f} GB/s, "
            f"products {floor.bfloat16_gflop_per_s:,.0f} GFLOP/s in bfloat16, "
            f"{floor.float32_gflop_per_s:,.0f} in float32."
        )


def _batching_lines(summary: Sequence[Summary]) -> Iterator[str]:
    """State the gain of batching, with the two speeds it is computed from."""
    alone = {
        one.server: one.figures[_SPEED].median for one in summary if one.scenario == "alone" and _SPEED in one.figures
    }
    for one in summary:
        if "over_alone" in one.figures:
            batched, single = one.figures[_SPEED].median, alone[one.server]
            yield (
                f"{one.server}: {one.streams} streams batched {batched:,.1f} tokens/s, one after another "
                f"{single:,.1f} tokens/s, ratio {one.figures['over_alone'].median:.2f}."
            )


def _soak_lines(runs: Sequence[Run]) -> Iterator[str]:
    """State how much memory grew from the middle of the soak to its end."""
    soaks: dict[str, list[Run]] = {}
    for run in runs:
        if run.scenario == "soak":
            soaks.setdefault(run.server, []).append(run)
    for server, parts in soaks.items():
        middle, last = parts[len(parts) // 2 - 1].figures, parts[-1].figures
        grown = {name: last[name] / middle[name] - 1 for name in last if name.startswith("pss_") and middle.get(name)}
        said = ", ".join(f"{_process_of(name)} {share:+.2%}" for name, share in grown.items())
        n_requests = sum(part.figures.get("requests", 0.0) for part in parts)
        yield f"{server}: {n_requests:,.0f} short requests; memory in the last half: {said or 'not known'}."


def _process_of(figure: str) -> str:
    """Return `api` for `pss_api_bytes`."""
    return "all" if figure == _MEMORY else figure.removeprefix("pss_").removesuffix("_bytes")


def _warnings(record: Record) -> Iterator[str]:
    """State what makes a figure less reliable than it looks."""
    if record.is_partial:
        yield f"Stopped before its end: {len(record.runs)} runs had been made."
    for one in record.summary:
        chunks, short = one.figures.get("chunks_per_token"), one.figures.get("short_answers")
        if chunks is not None and not _ONE_EACH[0] <= chunks.median <= _ONE_EACH[1]:
            yield f"{one.place}: {chunks.median:.2f} events a token, so its itls are not those between tokens"
        if short is not None and short.max > 0:
            yield f"{one.place}: up to {short.max:.0f} answers ended early"
    for run in record.runs:
        for sentence, n in {error: run.errors.count(error) for error in run.errors}.items():
            yield f"{run.server}, {run.scenario} {run.streams}, repeat {run.repeat}: {n} failed: {sentence}"
