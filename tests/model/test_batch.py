"""A batch has the rows of a step as tensors."""

from __future__ import annotations

import torch

from sluiceway.config import BLOCK_TOKENS
from sluiceway.model.batch import build_batch
from support.tiny_config import tiny_config
from support.tiny_models import row

CONFIG = tiny_config()


def test_rows_follow_one_another() -> None:
    """The rows are a chunk across a block border without a sample, a row that decodes, and a whole prompt."""
    known = list(range(100, 140))
    batch = build_batch(
        (row(known, 14, 4, 5, samples=False), row(known, 33, 1, 20), row(known[:2], 0, 2, 9)),
        CONFIG,
        torch.float32,
        torch.device("cpu"),
    )
    assert batch.token_ids.tolist() == [114, 115, 116, 117, 133, 100, 101]
    assert batch.positions.tolist() == [14, 15, 16, 17, 33, 0, 1]
    assert batch.sampled.tolist() == [4, 6]
    blocks_and_offsets = [(5, 14), (5, 15), (6, 0), (6, 1), (22, 1), (9, 0), (9, 1)]
    assert batch.slots.tolist() == [
        (block * 2 + head) * BLOCK_TOKENS + offset for block, offset in blocks_and_offsets for head in (0, 1)
    ]
    assert len(batch.attention.order) == 7
    # Blocks 6 and 9 are begun here and not filled; 5 and 22 are older.
    assert batch.fresh_runs.tolist() == [12, 13, 18, 19]


def test_only_the_entries_of_the_step_are_read() -> None:
    """The lists of a row grow while it runs. Entries after the step are not part of it."""
    growing = row([1, 2, 3, 4, 5], 1, 2, 7)
    growing.block_ids.append(999)  # type: ignore[attr-defined]
    batch = build_batch((growing,), CONFIG, torch.float32, torch.device("cpu"))
    assert batch.token_ids.tolist() == [2, 3]
    assert batch.attention.groups[0].runs.max() == 15


def test_a_block_that_the_step_fills_is_not_cleared() -> None:
    """The step writes all of it, so clearing it first would be wasted time."""
    batch = build_batch((row(list(range(32)), 0, 32, 5),), CONFIG, torch.float32, torch.device("cpu"))
    assert batch.fresh_runs.tolist() == []


def test_drafts_follow_the_known_tokens_and_are_sampled_after() -> None:
    """One row has two drafts across a block border. It is between a chunk and a row without drafts."""
    known = list(range(100, 115))
    batch = build_batch(
        (row(known, 0, 4, 5, samples=False), row(known, 14, 1, 7, drafts=(7, 8)), row(known[:2], 0, 2, 9)),
        CONFIG,
        torch.float32,
        torch.device("cpu"),
    )
    assert batch.token_ids.tolist() == [100, 101, 102, 103, 114, 7, 8, 100, 101]
    assert batch.positions.tolist() == [0, 1, 2, 3, 14, 15, 16, 0, 1]
    assert batch.sampled.tolist() == [4, 5, 6, 8]
    assert batch.slots[8:14:2].tolist() == [7 * 2 * 16 + 14, 7 * 2 * 16 + 15, 8 * 2 * 16]
