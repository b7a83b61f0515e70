"""Small models with random weights, for transformers and for ours, and rows for our backends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sluiceway.config import BLOCK_TOKENS, Dtype, ModelFiles, ModelKind
from sluiceway.engine.scheduler.plan import Row
from sluiceway.model.load import LoadedModel, load_model
from sluiceway.types import SamplingParams

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [(7 * i * i + 3 * i + 5) % 160 for i in range(300)]
"""Token ids of the vocabulary of `SIZES`."""

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "initializer_range": 0.15,
}


def reference_model(kind: str = "Llama", seed: int = 0, **settings: Any) -> Any:
    """A transformers model in float32; biases and norms are random too."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**(SIZES | settings))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def reference_logits(model: Any, token_ids: Sequence[int]) -> Tensor:
    """Logits of every position: (positions, vocab_size)."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([list(token_ids)])).logits[0]
    return logits


def saved(model: Any, directory: Path, **options: Any) -> ModelFiles:
    model.save_pretrained(directory, **options)
    return ModelFiles(kind=ModelKind.DIRECTORY, path=str(directory), name="tiny")


def loaded(model: Any, directory: Path, dtype: Dtype = "float32") -> LoadedModel:
    return load_model(saved(model, directory), dtype)


def row(
    known: Sequence[int],
    start: int,
    n_tokens: int,
    first_block: int,
    *,
    rid: int = 0,
    samples: bool = True,
    n_prompt: int | None = None,
    sampling: SamplingParams = GREEDY,
    seed: int = 0,
    drafts: Sequence[int] = (),
) -> Row:
    """Make a row of `n_tokens` known tokens and the drafts. It has consecutive blocks from `first_block` on."""
    n_tokens += len(drafts)
    n_blocks = -(-(start + n_tokens) // BLOCK_TOKENS)
    return Row(
        rid=rid,
        known=known,
        start=start,
        n_tokens=n_tokens,
        block_ids=list(range(first_block, first_block + n_blocks)),
        samples=samples,
        n_prompt=len(known) if n_prompt is None else n_prompt,
        sampling=sampling,
        seed=seed,
        drafts=drafts,
    )


class Stepper:
    """Runs rows through a model, step after step, over one cache."""

    def __init__(self, model: LoadedModel, n_blocks: int = 256) -> None:
        self._pass = model.start(n_blocks)

    def step(self, *rows: Row) -> Tensor:
        """Logits of the rows that sample."""
        n_sampled = sum(row.n_samples for row in rows)
        return self._pass.compute(rows, logits_of=range(n_sampled)).logits


def require_same_logits_in_any_batch(model: LoadedModel) -> None:
    """Compute `PROMPT` alone, in chunks beside other prompts, and in batches of 1 to 64 rows: every bit is equal."""
    alone = Stepper(model).step(row(PROMPT, 0, 300, 0))
    others = [PROMPT[i : i + 20 + 9 * i] for i in range(25)]
    stepper = Stepper(model)
    starts = (0, 1, 90, 97, 240, 299, 300)
    for start, end in zip(starts, starts[1:], strict=False):
        rows = [row(tokens, 0, len(tokens), 20 + 16 * i) for i, tokens in enumerate(others[: start % 13])]
        logits = stepper.step(*rows, row(PROMPT, start, end - start, 0))
    assert torch.equal(logits[-1], alone[0])
    for n in range(1, 65):
        batch = stepper.step(*[row(PROMPT, 299, 1, 0) for _ in range(n)])
        assert all(torch.equal(each, alone[0]) for each in batch), f"{n} rows"
