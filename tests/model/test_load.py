"""Loading a decoder from files: progress, dtypes, shards, memory, and files that do not fit together."""

from __future__ import annotations

import gc
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ConfigError, ModelSourceError
from sluiceway.model.load import load_model
from support.damage import changed_bytes, changed_json
from support.tiny_models import Stepper, loaded, reference_logits, reference_model, row, saved

PROMPT = list(range(20))


def logits_of(files: ModelFiles) -> torch.Tensor:
    return Stepper(load_model(files, "float32")).step(row(PROMPT, 0, 20, 0))


def test_shards_give_the_same_model_as_one_file(tmp_path: Path) -> None:
    """The parts of one fused matrix are in different files."""
    model = reference_model()
    one = saved(model, tmp_path / "one")
    many = saved(model, tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert torch.equal(logits_of(one), logits_of(many))


def test_progress_reaches_the_total_once(tmp_path: Path) -> None:
    """It counts the bytes of the tensors in the file, and never decreases."""
    seen: list[tuple[int, int]] = []
    model = reference_model()
    load_model(saved(model, tmp_path), "bfloat16", lambda done, total: seen.append((done, total)))
    done = [d for d, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1] == (sum(p.nbytes for p in model.parameters()),) * 2


def test_a_tied_head_that_the_file_repeats_is_no_error(tmp_path: Path) -> None:
    """Some checkpoints have both."""
    files = saved(reference_model(tie_word_embeddings=True), tmp_path)
    before = logits_of(files)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / "model.safetensors"
    )
    assert torch.equal(logits_of(files), before)


def test_a_head_that_differs_from_the_embedding_is_used_though_the_settings_tie_them(tmp_path: Path) -> None:
    """Transformers does the same: it warns, and does not tie them."""
    from transformers import LlamaForCausalLM

    files = saved(reference_model(tie_word_embeddings=True), tmp_path)
    tied = logits_of(files)
    tensors = load_file(tmp_path / "model.safetensors")
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].flip(0).clone()}
    save_file(tensors | head, tmp_path / "model.safetensors", metadata={"format": "pt"})
    expected = reference_logits(LlamaForCausalLM.from_pretrained(tmp_path), PROMPT)[-1]
    assert torch.allclose(logits_of(files)[0], expected, atol=1e-4)
    assert not torch.allclose(tied[0], expected, atol=1e-2)


def test_a_tied_head_of_another_shape_is_an_error(tmp_path: Path) -> None:
    """Such a head does not repeat the embedding."""
    files = saved(reference_model(tie_word_embeddings=True), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": torch.ones(3, 64)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelSourceError, match=r"'lm_head\.weight' has shape \(3, 64\)"):
        load_model(files, "float32")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, r"has no tensor 'model\.norm\.weight'"),
        (
            {"model.layers.1.self_attn.k_proj.weight": torch.ones(7, 64)},
            r"'model\.layers\.1\.self_attn\.k_proj\.weight'",
        ),
        ({"model.layers.2.mlp.up_proj.weight": torch.ones(2, 2)}, r"'model\.layers\.2\.mlp\.up_proj\.weight'"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    """The tensor is missing, has a wrong shape, or belongs to a layer that the settings do not have."""
    files = saved(reference_model(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors") | change
    save_file({name: t for name, t in tensors.items() if t is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelSourceError, match=message):
        load_model(files, "float32")


def test_a_damaged_directory_loads_or_is_an_error_of_ours(tmp_path: Path) -> None:
    """Settings have wrong values, or weights have changed bytes. The error has one line, of our own classes."""
    files = saved(reference_model(num_hidden_layers=1), tmp_path)
    draw = random.Random(0)
    whole = {name: (tmp_path / name).read_bytes() for name in ("config.json", "model.safetensors")}
    outcomes = set()
    for _ in range(150):
        name = draw.choice(("config.json", "config.json", "model.safetensors"))
        if name == "config.json" and draw.random() < 0.8:
            content = json.dumps(changed_json(json.loads(whole[name]), draw)).encode()
        else:
            content = changed_bytes(whole[name], draw)
        (tmp_path / name).write_bytes(content)
        try:
            load_model(files, "float32")
            outcomes.add("loaded")
        except ModelSourceError as error:
            assert "\n" not in str(error) and len(str(error)) < 2_000
            outcomes.add(type(error).__name__)
        (tmp_path / name).write_bytes(whole[name])
    assert outcomes == {"loaded", "ModelSourceError", "ModelConfigError"}


def test_an_unsupported_architecture_is_refused(tmp_path: Path) -> None:
    """The error names it, and comes before a tensor is read."""
    files = saved(reference_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["FalconForCausalLM"]}))
    with pytest.raises(ConfigError, match="FalconForCausalLM"):
        load_model(files, "float32")


def test_the_fake_model_has_nothing_to_load() -> None:
    """It has a runner of its own."""
    with pytest.raises(ModelSourceError):
        load_model(ModelFiles(kind=ModelKind.FAKE, path="", name="fake"), "auto")


def test_matrices_exist_once_when_they_are_packed(tmp_path: Path) -> None:
    """After loading there is no plain copy of a layer's matrix."""
    model = loaded(reference_model(vocab_size=200), tmp_path)
    gc.collect()
    shapes = [
        tuple(x.shape)
        for x in gc.get_objects()
        if type(x) is torch.Tensor and x.layout == torch.strided and x.stride() != (0, 0) and x.ndim == 2
    ]
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        pytest.skip("nothing is packed here")
    assert (2 * 96, 64) not in shapes
    assert model.config.vocab_size == 200
