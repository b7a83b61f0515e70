"""Times steps whose attention gathers blocks into tensors, or reads them through the block table in a kernel.

It needs no server. The steps run in this process, with one attention, the other, and none, interleaved.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from sluiceway.config import BLOCK_TOKENS
from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.record import Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.session import RunningServer

if TYPE_CHECKING:
    from sluiceway_lab.load.decoding import DecodeMethod, DecodeRow

METHODS = GATHER, KERNEL, NONE = "gather", "kernel", "no attention"
BOTH = "both"
_STEP, _ATTENTION, _APART = "step_s", "attention_s", "logits_apart"
_PROMPT_TOKENS = 70
_ROUNDS = 4
"""Another round comes before them as a warm-up."""
_ROUNDING = 0.05
_HALF, _NEAR = 0.5, 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelScale:
    """The sizes. `contexts` are a short and a long one, in tokens of each row, with the new token."""

    rows: tuple[int, ...]
    contexts: tuple[int, int]
    mixed: int
    """Rows of the batch that has one long row."""
    repeats: int

    @property
    def n_blocks(self) -> int:
        return max(self.rows) * -(-max(self.contexts) // BLOCK_TOKENS)


_FULL = KernelScale(rows=(1, 2, 4, 8, 16, 32, 64), contexts=(128, 1024), mixed=32, repeats=5)
_SMOKE = KernelScale(rows=(1, 2, 4), contexts=(128, 256), mixed=4, repeats=1)


async def _run(lab: Lab) -> list[Verdict]:
    if isinstance(lab.first, RunningServer):
        raise ConfigError("url", "this experiment asks no server: it computes steps of the model by itself")
    from sluiceway_lab.load.decoding import methods_of, model_of, torch_threads

    scale = lab.pick(_FULL, _SMOKE)
    lab.say(f"loading {lab.first.files.name}")
    with torch_threads(lab.first.threads):
        model = model_of(lab.first.files, lab.seed)
        methods = dict(zip(METHODS, methods_of(model, scale.n_blocks), strict=True))
        dtype = str(model.dtype).removeprefix("torch.")
        _compare(lab, methods, model.config.vocab_size, dtype)
        for repeat in range(scale.repeats):
            for name, rows in _batches(scale, lab.seed):
                _time(lab, methods, dtype, name, rows, repeat)
    return verdicts(lab)


def _compare(lab: Lab, methods: Mapping[str, DecodeMethod], vocabulary: int, server: str) -> None:
    """Prefill a prompt and compute the next step. Compare the logits of the two methods."""
    from sluiceway_lab.load.decoding import row_of

    drawing = random.Random(lab.seed)
    known = [drawing.randrange(vocabulary) for _ in range(_PROMPT_TOKENS + 1)]
    blocks = range(-(-len(known) // BLOCK_TOKENS))
    found = []
    for name in (GATHER, KERNEL):
        methods[name].step([row_of(known, 0, _PROMPT_TOKENS, blocks)])
        found.append(methods[name].step([row_of(known, _PROMPT_TOKENS, 1, blocks)]).float())
    apart = float((found[0] - found[1]).norm() / found[0].norm())
    lab.note(server, BOTH, {_APART: apart}, streams=1)


def _batches(scale: KernelScale, seed: int) -> Sequence[tuple[str, list[DecodeRow]]]:
    """Make batches of decoding rows with scattered blocks. In the last one, a single row is long."""
    short, long = scale.contexts
    table = list(range(scale.n_blocks))
    random.Random(seed).shuffle(table)
    found = [
        (f"{context} tokens", _decoding([context] * n_rows, table))
        for context in scale.contexts
        for n_rows in scale.rows
    ]
    return [*found, (f"{short} tokens, one row {long}", _decoding([long] + [short] * (scale.mixed - 1), table))]


def _decoding(contexts: Sequence[int], table: Sequence[int]) -> list[DecodeRow]:
    from sluiceway_lab.load.decoding import row_of

    rows, first = [], 0
    for context in contexts:
        n_blocks = -(-context // BLOCK_TOKENS)
        rows.append(row_of([0] * context, context - 1, 1, table[first : first + n_blocks]))
        first += n_blocks
    return rows


def _time(
    lab: Lab, methods: Mapping[str, DecodeMethod], server: str, name: str, rows: list[DecodeRow], repeat: int
) -> None:
    """Time a step with each method, interleaved, several times. Attention is what a step takes more than without it."""
    ordered = METHODS if repeat % 2 == 0 else METHODS[::-1]
    rounds = [{method: _seconds(methods[method], rows) for method in ordered} for _ in range(_ROUNDS + 1)][1:]
    for method in METHODS:
        figures = {_STEP: statistics.median(took[method] for took in rounds)}
        if method != NONE:
            figures[_ATTENTION] = statistics.median(took[method] - took[NONE] for took in rounds)
        lab.note(server, f"{method}, {name}", figures, streams=len(rows), repeat=repeat)


def _seconds(method: DecodeMethod, rows: Sequence[DecodeRow]) -> float:
    started_s = time.perf_counter()
    method.step(rows)
    return time.perf_counter() - started_s


def verdicts(lab: Lab) -> list[Verdict]:
    scale = lab.pick(_FULL, _SMOKE)
    (apart,) = lab.figures(_APART, BOTH)
    return [
        Verdict(
            "both methods come to the same logits, but for rounding",
            apart <= _ROUNDING,
            f"they are {apart:.2%} of their length apart",
        ),
        _alone(lab, scale),
        *(_further(lab, scale, context) for context in scale.contexts),
        _padding(lab, scale),
    ]


def _alone(lab: Lab, scale: KernelScale) -> Verdict:
    """Judge one sequence, for which the rest of the step dominates."""
    ratios = []
    for context in scale.contexts:
        gather, kernel = (_median(lab, _STEP, method, f"{context} tokens", 1) for method in (GATHER, KERNEL))
        ratios.append((max(gather, kernel) / min(gather, kernel), context, gather, kernel))
    said = [f"{context} tokens: {gather * 1e3:.1f} ms, {kernel * 1e3:.1f}" for _, context, gather, kernel in ratios]
    stood = max(ratio for ratio, *_ in ratios) <= _NEAR
    return lab.timed("a step of one sequence takes as long with either, within a tenth", stood, "; ".join(said))


def _further(lab: Lab, scale: KernelScale, context: int) -> Verdict:
    """Describe a step by a straight line over its sequences: a fixed part, and what each adds."""
    lines = {method: _line(lab, scale, _STEP, method, context) for method in (GATHER, KERNEL)}
    said, top = [], max(scale.rows)
    for method, (slope, fixed) in lines.items():
        most, own = (
            _median(lab, _STEP, method, f"{context} tokens", top),
            _line(lab, scale, _ATTENTION, method, context)[0],
        )
        said.append(
            f"{method} {fixed * 1e3:.1f} ms + {slope * 1e3:.2f} ms a sequence, {own * 1e3:.2f} of them attention's; "
            f"{top} take {most * 1e3:.0f} ms"
        )
    return lab.timed(
        f"at {context} tokens a further sequence costs the kernel less than half of what it costs the gather",
        lines[KERNEL][0] < _HALF * lines[GATHER][0],
        ". ".join(said),
    )


def _padding(lab: Lab, scale: KernelScale) -> Verdict:
    """Compare one long row among short ones with batches of only short and only long rows."""
    short, long = scale.contexts
    names = f"{short} tokens", f"{short} tokens, one row {long}", f"{long} tokens"
    least, mixed, most = (_median(lab, _STEP, GATHER, name, scale.mixed) for name in names)
    return lab.timed(
        "the gather pads: a batch with one long row costs it as much as though half of all rows were long",
        mixed - least >= _HALF * (most - least),
        f"{scale.mixed} rows: {least * 1e3:.1f} ms where all are short, {mixed * 1e3:.1f} with one long row, "
        f"{most * 1e3:.1f} where all are",
    )


def _line(lab: Lab, scale: KernelScale, figure: str, method: str, context: int) -> tuple[float, float]:
    """Return slope and fixed part, by medians, so that no single batch changes the line."""
    times = {n_rows: _median(lab, figure, method, f"{context} tokens", n_rows) for n_rows in scale.rows}
    slope = statistics.median((times[more] - times[less]) / (more - less) for less, more in combinations(scale.rows, 2))
    return slope, statistics.median(took - slope * n_rows for n_rows, took in times.items())


def _median(lab: Lab, figure: str, method: str, name: str, n_rows: int) -> float:
    return lab.median(figure, f"{method}, {name}", n_rows)


EXPERIMENT = Experiment(
    name="paged-kernel",
    question="Gather the blocks into tensors, or read them through the table in a kernel: what does a step take?",
    run=_run,
    columns=(
        Column(_STEP, "step ms", 1e3, 2, True),
        Column(_ATTENTION, "attention ms", 1e3, 2, True),
        Column(_APART, "logits apart %", 100, 2),
    ),
    drawn=(_STEP,),
    is_drawn_over_streams=True,
    not_shown=(
        "the whole step in native code, which the product takes where it has a compiler: here every other part of a "
        "step is torch's in both methods, and the kernel is called layer by layer",
        "a gather into one tensor that is as long as the longest row: the product gathers rows of equal length, "
        "rounded up to 128 tokens, together",
        "contexts that are no multiple of 128 tokens, for which the gather copies up to 127 tokens in vain",
        "a GPU",
    ),
)
