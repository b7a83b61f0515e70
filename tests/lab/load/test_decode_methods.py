"""Creating the compared methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sluiceway.config import ModelFiles, ModelKind
from sluiceway_lab.load import decode_methods
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.decode_methods import methods_of, model_of, torch_threads
from support.tiny_models import reference_model, row, saved

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


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


def test_caches_are_full_of_the_same_numbers() -> None:
    """A row attends to tokens that it has not computed, and sees the same ones with every method."""
    gathered, table, _ = methods_of(model_of(FAKE, 0), 16, 3)
    one = row([5] * 200, 199, 1, 2)
    here, there = gathered.step([one]).float(), table.step([one]).float()
    emptied = methods_of(model_of(FAKE, 0), 16, 4)[0].step([one]).float()
    assert (here - there).norm() < 0.03 * here.norm()
    assert (here - emptied).norm() > 0.05 * here.norm()


def test_comparison_needs_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_methods, "best_kernels", lambda: None)
    with pytest.raises(LoadError, match="^the native kernels, which are one side of this comparison, are not built"):
        methods_of(model_of(FAKE, 0), 1, 0)


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
