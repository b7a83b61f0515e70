"""An engine is built with the limits that follow from the settings and from the model."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from sluiceway.config import ModelFiles, ModelKind, ServeConfig
from sluiceway.procs.engine_setup import FAKE_MAX_MODEL_LEN, build_engine
from sluiceway.types import EngineFacts


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    """Building freezes what lives, which is right for a process and not for the tests after this one."""
    yield
    gc.unfreeze()


def facts_of(**settings: Any) -> EngineFacts:
    model = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")
    _, facts = build_engine(ServeConfig(model=model, **settings))
    return facts


def test_the_context_is_the_models_own_when_nothing_is_said() -> None:
    """And it may be made shorter, never longer."""
    assert facts_of().max_model_len == FAKE_MAX_MODEL_LEN
    assert facts_of(max_model_len=64).max_model_len == 64
    assert facts_of(max_model_len=FAKE_MAX_MODEL_LEN + 1).max_model_len == FAKE_MAX_MODEL_LEN


def test_the_cache_holds_whole_blocks() -> None:
    """As many as fit into the tokens that were asked for; a sequence cannot be longer than all of them."""
    facts = facts_of(kv_cache_tokens=1000)
    assert facts.n_blocks == 1000 // facts.block_tokens
    assert facts.max_sequence_tokens == facts.n_blocks * facts.block_tokens
