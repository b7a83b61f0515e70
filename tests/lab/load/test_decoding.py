"""Each attention computes what the product computes, for all kinds of heads, windows and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.load import load_model
from sluiceway_lab.load import decoding
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.decoding import LayerDecoder, TokenPlaces, methods_of, model_of, torch_threads
from support.tiny_models import reference_model, row, saved

PROMPTS = ([3, 1, 4, 1, 5] * 9, [2, 7, 1] * 47)
FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


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
    gathered, table, bare = (logits(method.step) for method in methods_of(model, 40))
    assert (gathered - table).norm() < 0.05 * gathered.norm()
    assert (gathered - bare).norm() > 0.2 * gathered.norm()


def test_gather_is_what_the_product_computes(tmp_path: Path) -> None:
    files = saved(reference_model(), tmp_path)
    product = load_model(files, "float32").start(40)

    def serve(rows: Sequence[Row]) -> Tensor:
        return product.compute(rows, logits_of=range(sum(row.n_samples for row in rows))).logits

    served, gathered = logits(serve), logits(methods_of(model_of(files, 0), 40)[0].step)
    assert (gathered - served).norm() < 0.05 * served.norm()


def test_place_of_a_token_is_in_its_rows_own_table() -> None:
    places = TokenPlaces.of([row(list(range(20)), 14, 4, 7), row(list(range(40)), 33, 1, 2)])
    assert places.positions.tolist() == [14, 15, 16, 17, 33]
    assert places.blocks.tolist() == [7, 7, 8, 8, 4]
    assert places.slots.tolist() == [14, 15, 0, 1, 1]


def test_nothing_keeps_nothing(tmp_path: Path) -> None:
    model = model_of(saved(reference_model(), tmp_path), 0)
    bare = LayerDecoder(model, None)
    bare.fill()
    alone, after = (bare.step([row(known, len(known) - 1, 1, 0)]) for known in ([9], [9, 9]))
    assert alone.shape == after.shape == (1, 160)


def test_fake_model_is_one_of_chance() -> None:
    first, again, other = (model_of(FAKE, seed).weights.embedding for seed in (1, 1, 2))
    assert first is not None and again is not None and other is not None
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.float().std() > 0.01


def test_model_is_read_from_its_files(tmp_path: Path) -> None:
    reference = reference_model()
    model = model_of(saved(reference, tmp_path), 0)
    embedding = reference.model.embed_tokens.weight.detach()
    assert model.config.vocab_size == 160
    assert model.weights.embedding is not None
    torch.testing.assert_close(model.weights.embedding.float(), embedding, atol=0.01, rtol=0.01)


def test_comparison_needs_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "best_kernels", lambda: None)
    with pytest.raises(LoadError, match="^the native kernels, which are one side of this comparison, are not built"):
        methods_of(model_of(FAKE, 0), 1)


@pytest.mark.parametrize("fails", [False, True])
def test_threads_are_as_before_in_the_end(fails: bool) -> None:
    before = torch.get_num_threads()
    try:
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert torch.get_num_threads() == before
    with torch_threads(0):
        assert torch.get_num_threads() >= 1
