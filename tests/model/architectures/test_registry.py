"""One file and one line add an architecture."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import sluiceway
from sluiceway.model.architectures.registry import ARCHITECTURES, BY_GGUF_NAME, BY_NAME

LINE = "ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3)"
NEW_LINE = "ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3, OLIVE, PLUM)"
NEW_FILE = """
from sluiceway.model.architectures.architecture import Architecture
from sluiceway.model.architectures.llama import LLAMA


def make_plum(config, weights, rope):
    from sluiceway.model.decoder import TorchDecoder

    class PlumDecoder(TorchDecoder):
        def forward(self, batch, cache):
            return -super().forward(batch, cache)

    return PlumDecoder(config, weights, rope)


OLIVE = Architecture(
    name="OliveForCausalLM", model_type="olive", defaults=LLAMA.defaults, has_qk_norm=True, gguf_name="olive"
)
PLUM = Architecture(name="PlumForCausalLM", model_type="plum", defaults=LLAMA.defaults, make_decoder=make_plum)
"""
USE = """
import sys
from dataclasses import replace
import torch
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.architectures.registry import BY_GGUF_NAME
from sluiceway.model.checkpoint import expected_shapes
from sluiceway.model.hf_config import config_from_json
from sluiceway.model.load import load_weights
from sluiceway.model.weight_format import choose_format
from sluiceway.types import SamplingParams

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40,
    "max_position_embeddings": 64,
}


class RandomCheckpoint:
    def __init__(self, config):
        self.shapes = expected_shapes(config)

    def source_bytes(self, name):
        return 1

    def read_into(self, name, out):
        torch.manual_seed(len(name))
        out.copy_(torch.randn(out.shape))

    def mapped(self, name, dtype):
        return None


def logits(name):
    config = config_from_json({"architectures": [name], **SMALL})
    plain = choose_format("float32", config)
    weights = load_weights(RandomCheckpoint(config), config, plain)
    backend = plain.backend(config, weights, None)(4)
    row = Row(
        rid=1, known=[1, 2, 3], start=0, n_tokens=3, block_ids=[0], samples=True, n_prompt=3,
        sampling=SamplingParams(), seed=0,
    )
    return backend.compute([row], logits_of=[0]).logits


olive, plum, llama = logits("OliveForCausalLM"), logits("PlumForCausalLM"), logits("LlamaForCausalLM")
assert torch.equal(plum, -llama)
assert not torch.equal(olive, llama) and bool(olive.isfinite().all())
assert type(choose_format("bfloat16", config_from_json({"architectures": ["PlumForCausalLM"], **SMALL}))).__name__ == (
    "TorchFormat"
)
assert BY_GGUF_NAME["olive"].name == "OliveForCausalLM"
"""


def test_an_architecture_is_found_by_each_of_its_names() -> None:
    for architecture in ARCHITECTURES:
        assert BY_NAME[architecture.name] is architecture
    assert {"llama", "qwen2", "qwen3"} == BY_GGUF_NAME.keys()


def test_a_file_and_a_line_add_an_architecture(tmp_path: Path) -> None:
    """The test changes a copy of the package. One architecture has the common decoder, the other its own decoder."""
    package = tmp_path / "sluiceway"
    shutil.copytree(Path(sluiceway.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    folder = package / "model" / "architectures"
    (folder / "fruit.py").write_text(NEW_FILE)
    registry = folder / "registry.py"
    text = registry.read_text()
    assert text.count(LINE) == 1
    line = "from sluiceway.model.architectures.fruit import OLIVE, PLUM\n" + NEW_LINE
    registry.write_text(text.replace(LINE, line))
    use = [sys.executable, "-c", f"import sluiceway; assert sluiceway.__file__.startswith({str(tmp_path)!r})\n{USE}"]
    run = subprocess.run(use, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
