"""Each attention computes what the product computes, for all kinds of heads, windows and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.load import load_model
from sluiceway_lab.load.decode_methods import methods_of, model_of
from sluiceway_lab.load.decoding import LayerDecoder, NoAttention, TokenPlaces
from support.tiny_models import reference_model, row, saved

PROMPTS = ([3, 1, 4, 1, 5] * 9, [2, 7, 1] * 47)


def logits(step: Callable[[Sequence[Row]], Tensor]) -> Tensor:
    """Those of two prompts, one of them in two chunks, and of a token after each."""
    short, long = PROMPTS
    step([row(long, 0, 100, 20, samples=False)])
    found = [step([row(short, 0, len(short), 3), row(long, 100, len(long) - 100, 20)])]
    found.append(step([row([*known, 9], len(known), 1, first) for known, first in ((short, 3), (long, 20))]))
    return torch.cat(found).float()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("Llama", {}),
        ("Llama", {"head_dim": 80, "num_key_value_heads": 1}),
        ("Qwen3", {"head_dim": 32}),
        ("Mistral", {"head_dim": 64, "sliding_window": 30}),
    ],
    ids=["small heads", "heads that are filled up", "normed heads", "a window"],
)
def test_gather_and_table_come_to_the_same_logits(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = model_of(saved(reference_model(kind, **settings), tmp_path), 0)
    gathered, table, bare = (logits(method.step) for method in methods_of(model, 40, 0))
    assert (gathered - table).norm() < 0.05 * gathered.norm()
    assert (gathered - bare).norm() > 0.2 * gathered.norm()


def test_gather_is_what_the_product_computes(tmp_path: Path) -> None:
    files = saved(reference_model(), tmp_path)
    product = load_model(files, "float32").start(40)

    def serve(rows: Sequence[Row]) -> Tensor:
        return product.compute(rows, logits_of=range(sum(row.n_samples for row in rows))).logits

    served, gathered = logits(serve), logits(methods_of(model_of(files, 0), 40, 0)[0].step)
    assert (gathered - served).norm() < 0.05 * served.norm()


def test_place_of_a_token_is_in_its_rows_own_table() -> None:
    places = TokenPlaces.of([row(list(range(20)), 14, 4, 7), row(list(range(40)), 33, 1, 2)])
    assert places.positions.tolist() == [14, 15, 16, 17, 33]
    assert places.blocks.tolist() == [7, 7, 8, 8, 4]
    assert places.slots.tolist() == [14, 15, 0, 1, 1]


def test_nothing_keeps_nothing(tmp_path: Path) -> None:
    model = model_of(saved(reference_model(), tmp_path), 0)
    bare = LayerDecoder(model, NoAttention())
    bare.fill(torch.ones(16, 2, 16), torch.ones(16, 2, 16))
    alone, after = (bare.step([row(known, len(known) - 1, 1, 0)]) for known in ([9], [9, 9]))
    assert alone.shape == after.shape == (1, 160)
