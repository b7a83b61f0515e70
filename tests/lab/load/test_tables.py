"""A record as tables for a person."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from sluiceway.lab.load.record import Record, Run
from sluiceway.lab.load.tables import show
from support.records import record, run

STREAMS = {"tokens_per_s": 100.0, "gap_p50_s": 0.0125, "cpu_api_s": 0.5, "cpu_api_per_chunk_s": 0.00004}


def shown(made: Record) -> str:
    console = Console(file=io.StringIO(), width=250)
    show(made, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_median_stands_with_its_spread() -> None:
    """In the units of the heading; one run alone has no spread."""
    text = shown(
        record(
            run("ours", "together", 32, 0, **STREAMS),
            run("ours", "together", 32, 1, **STREAMS | {"tokens_per_s": 1300.0}),
            run("ours", "together", 32, 2, **STREAMS | {"tokens_per_s": 1200.0}),
            run("ours", "together", 1, 0, tokens_per_s=151.0),
        )
    )
    assert "ours, together 32" in text and "1,200 (100-1,300)" in text
    assert "12.5 (12.5-12.5)" in text and " 151 " in text
    assert "api µs/chunk" in text and "40 (40-40)" in text and "cpu_" not in text


def test_tables_without_a_figure_are_left_out() -> None:
    """As are their columns."""
    text = shown(record(run("ours", "start", 0, ready_s=3.5), floor=None))
    assert "start to ready s" in text and "3.50" in text
    assert "Streams" not in text and "Engine" not in text and "GFLOP" not in text


def test_batching_is_told_in_the_numbers_that_it_is_made_of() -> None:
    """Both rates and their ratio."""
    text = shown(
        record(
            run("ours", "alone", 1, tokens_per_s=150.0),
            run("ours", "together", 32, tokens_per_s=1800.0, over_alone=12.0),
        )
    )
    assert "ours: 32 streams batched 1,800.0 tokens/s, one after another 150.0 tokens/s, ratio 12.00." in text


def test_machine_stands_beside_what_was_achieved() -> None:
    """Bytes and operations a second."""
    text = shown(record(run("ours", "together", 1, model_share=0.9, weights_gb_per_s=31.5, gflop_per_s=40.0)))
    assert "memory 40.0 GB/s, products 1,010 GFLOP/s in bfloat16, 233 in float32" in text
    assert "31.5" in text and "90.0" in text


def test_two_servers_are_set_against_each_other() -> None:
    """By name, in the order of the ratio; figures of no interest are left out."""
    text = shown(
        record(
            run("ours", "together", 32, tokens_per_s=1800.0, tokens=64.0),
            run("theirs", "together", 32, tokens_per_s=600.0, tokens=64.0),
            run("ours", "alone", 1, tokens=64.0),
            run("theirs", "alone", 1, tokens=64.0),
        )
    )
    assert "ours / theirs, together 32: tokens_per_s 3.00 (3.00-3.00)\n" in text
    assert "ours / theirs, alone" not in text


def test_errors_are_counted_by_sentence() -> None:
    """A table that hides them would be wrong."""
    failed: Run = msgspec.structs.replace(run("ours", "together", 8, tokens_per_s=1.0), errors=["busy", "busy", "gone"])
    text = shown(record(failed))
    assert "ours, together 8, repeat 0: 2 failed: busy" in text and "1 failed: gone" in text
