"""A forward pass in torch: the largest logits, and the requested rows of logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sluiceway.engine.scheduler.plan import NO_TOKEN
from sluiceway.model.backends import largest_of
from support.tiny_models import loaded, reference_logits, reference_model, row

PROMPT = [(3 * i * i + i) % 160 for i in range(40)]


def test_logits_come_where_they_are_wanted_and_the_largest_always(tmp_path: Path) -> None:
    """They are those of the rows that sample, in their order."""
    reference = reference_model()
    start = loaded(reference, tmp_path).start
    rows = (row(PROMPT, 0, 30, 0), row(PROMPT, 0, 9, 4, samples=False), row(PROMPT[:12], 0, 12, 8))

    outcome = start(16).compute(rows, logits_of=[0, 1])
    expected = torch.stack([reference_logits(reference, PROMPT[:n])[-1] for n in (30, 12)])
    torch.testing.assert_close(outcome.logits, expected, rtol=1e-3, atol=1e-3)
    assert outcome.largest.tolist() == expected.argmax(-1).tolist()

    without = start(16).compute(rows, logits_of=[])
    assert without.logits.shape == (0, expected.shape[1])
    assert without.largest.tolist() == outcome.largest.tolist()
    second = start(16).compute(rows, logits_of=[1])
    assert torch.equal(second.logits, outcome.logits[1:]) and second.largest.tolist() == outcome.largest.tolist()


def test_each_pass_has_a_cache_of_its_own(tmp_path: Path) -> None:
    """What one pass writes, the other does not read."""
    model = loaded(reference_model(), tmp_path)
    one, other = model.start(4), model.start(4)
    one.compute([row(PROMPT, 0, 20, 0)], logits_of=[])
    alone = one.compute([row(PROMPT, 20, 1, 0)], logits_of=[0]).logits
    empty = other.compute([row(PROMPT, 20, 1, 0)], logits_of=[0]).logits
    assert not torch.equal(alone, empty)
    assert one.cache_bytes == model.config.kv_token_elements * 4 * 16 * 4


NAN, INF = float("nan"), float("inf")


def test_the_largest_is_the_first_of_equals_and_never_nan() -> None:
    """A row without a logit above minus infinity has no token."""
    rows = [[1.0, 3.0, 3.0], [NAN, 1.0, 2.0], [NAN, NAN, NAN], [-INF, -INF, -INF], [-INF, NAN, -1.0], [0.0, INF, NAN]]
    expected = [1, 2, NO_TOKEN, NO_TOKEN, 2, 1]
    assert largest_of(torch.tensor(rows)).tolist() == expected
    assert [largest_of(torch.tensor([row])).item() for row in rows] == expected


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_broken_numbers_of_one_sequence_stay_out_of_the_next_owner_of_its_blocks(tmp_path: Path, kind: str) -> None:
    """A token whose embedding is NaN breaks only its own sequence."""
    reference = reference_model(kind, tie_word_embeddings=False)
    with torch.no_grad():
        reference.get_input_embeddings().weight[7] = NAN
    model = loaded(reference, tmp_path)
    clean, dirty = model.start(4), model.start(4)
    broken = dirty.compute([row([7] * 60, 0, 60, 0)], logits_of=[0])
    assert broken.logits.isnan().all() and broken.largest.tolist() == [NO_TOKEN]
    prompt = [token for token in PROMPT if token != 7][:37]
    for a, b in ((0, 5), (5, 16), (16, 36), (36, 37)):
        rows = [row(prompt, a, b - a, 1)]
        of_clean, of_dirty = (each.compute(rows, logits_of=[0]).logits for each in (clean, dirty))
        assert torch.equal(of_clean, of_dirty)
