"""The printed record of `bench`."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from sluiceway_lab.load.record import Record, Run
from sluiceway_lab.load.tables import show
from support.records import WEIGHTS, record, run

STREAMS = {
    "tokens_per_s": 100.0,
    "itl_p50_s": 0.0125,
    "cpu_api_s": 0.5,
    "cpu_api_per_chunk_s": 0.00004,
    "cpu_tokenizer_s": 0.25,
    "cpu_tokenizer_per_token_s": 0.00002,
}


def shown(made: Record) -> str:
    console = Console(file=io.StringIO(), width=250)
    show(made, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row_of(text: str, place: str) -> list[str]:
    """The cells of the only row with this name, without blank ones."""
    (found,) = [line.removeprefix(place).split() for line in text.splitlines() if line.startswith(f"{place}  ")]
    return found


def test_median_is_shown_with_its_spread() -> None:
    text = shown(
        record(
            run("ours", "together", 32, 0, **STREAMS),
            run("ours", "together", 32, 1, **STREAMS | {"tokens_per_s": 1300.0}),
            run("ours", "together", 32, 2, **STREAMS | {"tokens_per_s": 1200.0}),
            run("ours", "together", 1, 0, tokens_per_s=151.0),
        )
    )
    speeds, costs = text.split("Processor seconds, ours")
    assert row_of(speeds, "ours, together 32") == ["1,200", "(100-1,300)", "12.5"]
    assert row_of(speeds, "ours, together 1") == ["151"]
    assert "api µs/chunk" in costs and "µs/token" in costs and "cpu_" not in costs
    assert row_of(costs, "ours, together 32") == ["0.50", "0.25", "40", "20"]


def test_costs_of_requests_and_events_are_shown() -> None:
    split = {"cpu_api_per_further_chunk_s": 0.00003, "cpu_api_per_request_s": 0.0007}
    long, short = (
        run("ours", "together", 32, 0, **STREAMS | split),
        run("ours", "together_short", 32, tokens_per_s=90.0),
    )
    speeds, costs = shown(record(long, short)).split("Processor seconds, ours")
    assert row_of(speeds, "ours, together_short 32") == ["90"]
    assert row_of(costs, "ours, together 32") == ["0.50", "0.25", "40", "30", "700", "20"]


def test_record_that_is_partial_says_so() -> None:
    text = shown(record(run("ours", "start", 0, ready_s=3.5), is_partial=True))
    assert "Stopped before its end: 1 runs had been made.\n" in text
    assert "Stopped" not in shown(record(run("ours", "start", 0, ready_s=3.5)))


def test_tables_without_a_figure_are_left_out() -> None:
    text = shown(record(run("ours", "start", 0, ready_s=3.5), floor=None))
    assert "start to ready s" in text and "3.50" in text
    assert "Streams" not in text and "Engine" not in text and "GFLOP" not in text


def test_gain_of_batching_is_shown_with_both_speeds() -> None:
    text = shown(
        record(
            run("ours", "alone", 1, tokens_per_s=150.0),
            run("ours", "together", 32, tokens_per_s=1800.0, over_alone=12.0),
        )
    )
    assert "ours: 32 streams batched 1,800.0 tokens/s, one after another 150.0 tokens/s, ratio 12.00." in text


def test_figures_are_compared_with_the_floor() -> None:
    figures = {"step_mean_s": 0.01, "model_share": 0.9, "weights_gb_per_s": 31.5, "gflop_per_s": 202.0}
    text = shown(record(run("ours", "together", 1, 0, **figures)))
    assert "memory 40.0 GB/s, products 1,010 GFLOP/s in bfloat16, 233 in float32" in text
    assert row_of(text, "ours, together 1") == ["10.00", "90.0", "31.5", "79", "202", "20"]
    single = msgspec.structs.replace(WEIGHTS, dtype="float32")
    assert (
        row_of(shown(record(run("ours", "together", 1, 0, **figures), weights=single)), "ours, together 1")[-1] == "87"
    )
    assert "of the floor" not in shown(record(run("ours", "together", 1, 0, **figures), weights=None))


def test_two_servers_are_set_against_each_other() -> None:
    text = shown(
        record(
            run("ours", "together", 32, tokens_per_s=1800.0, tokens=64.0, cpu_server_s=1.0),
            run("theirs", "together", 32, tokens_per_s=600.0, tokens=64.0, cpu_server_s=4.0),
            run("ours", "alone", 1, tokens=64.0),
            run("theirs", "alone", 1, tokens=64.0),
            run("ours", "memory", 0, pss_bytes=5e8),
            run("theirs", "memory", 0, pss_bytes=4e9),
        )
    )
    _, of_streams, of_others = text.split("ours over theirs (2.00: twice as much)")
    assert row_of(of_streams, "together 32") == ["3.00", "0.25"]
    assert row_of(of_others, "memory") == ["0.12"]
    assert "alone" not in of_streams


def test_memory_growth_is_that_of_the_last_half_of_a_soak() -> None:
    """A cache that fills up once is not a leak."""
    parts = [
        run("ours", "soak", 8, part, requests=10.0, pss_api_bytes=1e6 * grown, pss_bytes=2e6 * grown)
        for part, grown in enumerate((1.0, 2.0, 2.0, 2.5))
    ]
    text = shown(record(*parts, run("theirs", "soak", 8, requests=10.0), ratios=[]))
    assert "\nours: 40 short requests; memory in the last half: api +25.00%, all +25.00%.\n" in text
    assert "\ntheirs: 10 short requests; memory in the last half: not known.\n" in text


def test_memory_is_shown_by_process() -> None:
    text = shown(
        record(run("ours", "memory", 0, pss_api_bytes=5e7, pss_engine_bytes=4e8, pss_bytes=4.5e8, rss_bytes=5e8))
    )
    assert row_of(text, "ours, memory") == ["50", "400", "450", "500"]


def test_figures_that_mean_less_than_they_seem_to_are_pointed_out() -> None:
    text = shown(
        record(
            run("ours", "together", 4, tokens_per_s=1.0, chunks_per_token=0.98, short_answers=0.0),
            run("theirs", "together", 4, tokens_per_s=1.0, chunks_per_token=0.5, short_answers=3.0),
        )
    )
    assert (
        "theirs, together 4: 0.50 events a token" in text and "theirs, together 4: up to 3 answers ended early" in text
    )
    assert "\nours, together 4: " not in text


def test_errors_are_counted_by_sentence() -> None:
    failed: Run = msgspec.structs.replace(run("ours", "together", 8, tokens_per_s=1.0), errors=["busy", "busy", "gone"])
    text = shown(record(failed))
    assert "ours, together 8, repeat 0: 2 failed: busy" in text and "1 failed: gone" in text
