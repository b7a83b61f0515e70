"""Builds the engine of a process: the model or the fake, the cache that fits, the limits that follow from both."""

from __future__ import annotations

import dataclasses
import random
import re
import time

import structlog

from sluiceway.config import BLOCK_TOKENS, EngineConfig, ModelKind, ServeConfig
from sluiceway.engine.engine import Engine
from sluiceway.engine.fake_runner import FakeRunner
from sluiceway.engine.runner import Runner
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.errors import ConfigError
from sluiceway.store.progress import OnLoad
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.text.load import load_eos_token_ids
from sluiceway.types import EngineFacts

FAKE_MAX_MODEL_LEN = 8192

_OUT_OF_MEMORY = re.compile("out of memory|not enough memory|can't allocate memory")
"""Torch has no error of its own for it on a CPU."""
_TOO_LARGE = "the model and a cache of {} tokens do not fit into memory; take fewer"


def build_engine(config: ServeConfig, on_load: OnLoad | None = None) -> tuple[Engine, EngineFacts]:
    """Load the model (seconds) and make an engine over it. Raises `ConfigError` or `ModelSourceError`."""
    n_blocks = config.kv_cache_tokens // BLOCK_TOKENS
    build_runner = _fake_runner if config.model.kind is ModelKind.FAKE else _torch_runner
    try:
        runner, engine_config = build_runner(config, n_blocks, on_load)
    except (MemoryError, RuntimeError) as fault:
        if not isinstance(fault, MemoryError) and not _OUT_OF_MEMORY.search(str(fault)):
            raise
        raise ConfigError("kv_cache_tokens", _TOO_LARGE.format(config.kv_cache_tokens)) from fault
    draw = random.SystemRandom()
    log = structlog.get_logger("engine")
    engine = Engine(
        Scheduler(engine_config),
        runner,
        draw_seed=lambda: draw.getrandbits(64),
        now_s=time.monotonic,
        on_fault=lambda exc: log.error("step failed", exc_info=exc),
    )
    return engine, _facts(engine_config)


def _facts(config: EngineConfig) -> EngineFacts:
    return EngineFacts(
        max_model_len=config.max_model_len,
        max_sequence_tokens=config.max_sequence_tokens,
        vocab_size=config.vocab_size,
        n_blocks=config.n_blocks,
        block_tokens=config.block_tokens,
    )


def _engine_config(
    config: ServeConfig, n_blocks: int, model_len: int, vocab_size: int, eos: tuple[int, ...]
) -> EngineConfig:
    return EngineConfig(
        n_blocks=n_blocks,
        max_model_len=min(model_len, config.max_model_len or model_len),
        vocab_size=vocab_size,
        eos_token_ids=eos,
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_step_tokens=config.max_step_tokens,
        step_target_s=config.step_target_s,
        speculation=config.speculation,
        max_draft_tokens=config.max_draft_tokens,
    )


def _fake_runner(config: ServeConfig, n_blocks: int, _: OnLoad | None) -> tuple[Runner, EngineConfig]:
    eos = load_eos_token_ids(config.model)
    engine_config = _engine_config(config, n_blocks, FAKE_MAX_MODEL_LEN, ByteTokenizer.vocab_size, eos)
    return FakeRunner(step_s=config.fake_step_s, sleep=time.sleep), engine_config


def _torch_runner(config: ServeConfig, n_blocks: int, on_load: OnLoad | None) -> tuple[Runner, EngineConfig]:
    from sluiceway.model.load import load_model
    from sluiceway.model.runner import TorchRunner

    model = load_model(config.model, config.dtype, on_load)
    # The tokenizer knows more of them: many files name the end of a document only, and spell the end of a turn.
    eos = tuple(dict.fromkeys((*model.config.eos_token_ids, *load_eos_token_ids(config.model))))
    model = dataclasses.replace(model, config=dataclasses.replace(model.config, eos_token_ids=eos))
    runner = TorchRunner(model, n_blocks, threads=config.threads)
    runner.warm_up()
    facts = model.config
    return runner, _engine_config(config, n_blocks, facts.max_model_len, facts.vocab_size, facts.eos_token_ids)
