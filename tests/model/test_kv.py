"""The cache: what is written to a slot is read from its block, and from no other block."""

from __future__ import annotations

import subprocess
import sys

import torch

from sluiceway.config import BLOCK_TOKENS
from sluiceway.model.kv import KVCache
from support.tiny_config import tiny_config

CONFIG = tiny_config(n_layers=2)


def test_what_is_written_is_gathered_by_block_and_head() -> None:
    """The test writes one token at offset 5 of block 3, in the second layer."""
    cache = KVCache(CONFIG, 4, torch.float32, torch.device("cpu"))
    keys = torch.arange(16.0).view(1, 2, 8)
    slots = torch.tensor([(3 * 2 + head) * BLOCK_TOKENS + 5 for head in (0, 1)])
    cache.write(1, slots, keys, -keys)

    gathered_keys, gathered_values = cache.gather(1, torch.tensor([7, 6, 0]))
    by_token = gathered_keys.view(3, BLOCK_TOKENS, 8)
    assert torch.equal(by_token[0, 5], keys[0, 1]) and torch.equal(by_token[1, 5], keys[0, 0])
    assert torch.equal(gathered_values, -gathered_keys)
    assert by_token.count_nonzero() == 15  # one of the 16 numbers is zero itself
    assert cache.gather(0, torch.arange(8))[0].count_nonzero() == 0


def test_cleared_runs_hold_zeros_in_every_layer() -> None:
    """Other runs do not change. Clearing nothing is allowed."""
    cache = KVCache(CONFIG, 2, torch.float32, torch.device("cpu"))
    slots = torch.arange(2 * 2 * BLOCK_TOKENS)
    for layer in (0, 1):
        cache.write(layer, slots, torch.full((32, 2, 8), torch.nan), torch.full((32, 2, 8), torch.nan))
    cache.clear(torch.tensor([2, 3]))
    cache.clear(torch.tensor([], dtype=torch.int64))
    for layer in (0, 1):
        for numbers in cache.gather(layer, torch.arange(4)):
            assert numbers[:2].isnan().all() and not numbers[2:].any()


def test_the_size_is_that_of_keys_and_values_of_all_layers() -> None:
    """The numbers have the dtype of the cache."""
    cache = KVCache(CONFIG, 4, torch.bfloat16, torch.device("cpu"))
    assert cache.n_bytes == CONFIG.kv_token_elements * 4 * BLOCK_TOKENS * 2


MEASURE = """
import torch
from sluiceway.model.config import ModelConfig
from sluiceway.model.kv import KVCache

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

config = ModelConfig(
    architecture="LlamaForCausalLM", n_layers=16, hidden_size=64, intermediate_size=96, n_heads=4, n_kv_heads=2,
    head_dim=128,
    vocab_size=100, max_model_len=256, rms_eps=1e-5, rope_theta=1e4,
)
before = resident_bytes()
cache = KVCache(config, 512, torch.float32, torch.device("cpu"))
print(cache.n_bytes, resident_bytes() - before, int(cache.gather(15, torch.tensor([0]))[0].count_nonzero()))
"""


def test_memory_is_taken_when_blocks_are_used() -> None:
    """An empty cache of 256 MB takes almost no memory. A process of its own measures that."""
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    n_bytes, taken_bytes, n_nonzero = map(int, result.stdout.split())
    assert n_bytes == 2**28
    assert taken_bytes < n_bytes / 10
    assert n_nonzero == 0
