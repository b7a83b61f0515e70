"""The limits of an engine follow from the settings and the model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluiceway.config import ModelFiles, ModelKind, ServeConfig
from sluiceway.engine.engine import Engine
from sluiceway.engine.setup import FAKE_MAX_MODEL_LEN, build_engine
from sluiceway.errors import ConfigError
from sluiceway.ipc.messages.to_engine import NewSequence, Submit, ToEngine
from sluiceway.ipc.messages.to_tokenizer import StepOut
from sluiceway.types import EngineFacts, FinishReason, SamplingParams
from support import tiny_models, vocabularies


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    """`build_engine` freezes the garbage collector's objects; the next tests need that undone."""
    yield
    gc.unfreeze()


def facts_of(**settings: Any) -> EngineFacts:
    model = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")
    _, facts = build_engine(ServeConfig(model=model, **settings))
    return facts


def test_context_length_is_that_of_the_model_by_default() -> None:
    """The setting can make it shorter, never longer."""
    assert facts_of().max_model_len == FAKE_MAX_MODEL_LEN
    assert facts_of(max_model_len=64).max_model_len == 64
    assert facts_of(max_model_len=FAKE_MAX_MODEL_LEN + 1).max_model_len == FAKE_MAX_MODEL_LEN


def test_cache_holds_whole_blocks() -> None:
    """As many as fit into `kv_cache_tokens`. No sequence can be longer than the cache."""
    facts = facts_of(kv_cache_tokens=1000)
    assert facts.n_blocks == 1000 // facts.block_tokens
    assert facts.max_sequence_tokens == facts.n_blocks * facts.block_tokens


@pytest.mark.parametrize(
    "fault",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), RuntimeError("CUDA out of memory")],
)
def test_cache_that_does_not_fit_into_memory_is_a_config_error(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """Python, torch on a CPU and CUDA report it differently."""
    _fail_to_build(monkeypatch, fault)
    with pytest.raises(
        ConfigError, match="kv_cache_tokens: the model and a cache of 640 tokens do not fit into memory"
    ):
        facts_of(kv_cache_tokens=640)


def test_other_errors_of_the_model_are_not_reported_as_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_to_build(monkeypatch, RuntimeError("an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        facts_of()


def _fail_to_build(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    def fail(**_: object) -> None:
        raise fault

    monkeypatch.setattr("sluiceway.engine.setup.FakeRunner", fail)


def test_answer_ends_with_any_end_token_of_the_model_files(tmp_path: Path) -> None:
    """The model's configuration names one, and the tokenizer another. Neither is sampled before `min_tokens`."""
    model = tiny_models.saved(tiny_models.reference_model(eos_token_id=2), tmp_path)
    vocabularies.write_directory(tmp_path)
    engine, _ = build_engine(ServeConfig(model=model, kv_cache_tokens=256, threads=1))
    for end in (1, 2):
        sampling = SamplingParams(temperature=0.0, logit_bias=((end, 100.0),), min_tokens=2)
        token_ids, reason = answer(engine, NewSequence(rid=end, prompt_token_ids=(5, 6), sampling=sampling))
        assert reason is FinishReason.STOP
        assert token_ids.index(end) == 2 == len(token_ids) - 1


def answer(engine: Engine, sequence: NewSequence) -> tuple[list[int], FinishReason]:
    """The tokens of one sequence, and why it ended."""
    inbox: list[ToEngine] = [Submit((sequence,))]
    token_ids: list[int] = []
    while True:
        for out in engine.step(lambda: [inbox.pop()] if inbox else []):
            assert isinstance(out, StepOut)
            token_ids += out.token_ids
            if out.ends:
                return token_ids, out.ends[0].reason
