"""Replaces `sluiceway.llm` in tests of commands: no engine, scripted answers, a record of the calls."""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from sluiceway.config import ModelFiles
from sluiceway.errors import SluicewayError
from sluiceway.types import FinishReason, SamplingParams


class ScriptedCompletion(msgspec.Struct, frozen=True):
    """A completion without an engine."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int


@dataclass
class Script:
    """Each answer has these `pieces`; then `fault` is raised, if there is one."""

    pieces: Sequence[str] = ("one ", "two")
    fault: SluicewayError | None = None
    opened: list[tuple[ModelFiles, dict[str, Any]]] = field(default_factory=list)
    asked: list[tuple[Any, SamplingParams | None, tuple[str, ...]]] = field(default_factory=list)
    closed: int = 0

    def stream(self) -> Generator[str, None, None]:
        yield from self.pieces
        if self.fault:
            raise self.fault


def script_llm(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Replaces the module by the scripted one."""
    script = Script()

    class ScriptedLLM:
        def __init__(self, files: ModelFiles, **settings: Any) -> None:
            script.opened.append((files, settings))

        def __enter__(self) -> ScriptedLLM:
            return self

        def __exit__(self, *exc_info: object) -> None:
            script.closed += 1

        def generate(
            self, prompt: str, sampling: SamplingParams, *, stop: Sequence[str] = ()
        ) -> list[ScriptedCompletion]:
            script.asked.append((prompt, sampling, tuple(stop)))
            return [ScriptedCompletion("".join(script.stream()), (1, 2), FinishReason.LENGTH, 7)]

        def stream(self, prompt: str, sampling: SamplingParams, *, stop: Sequence[str] = ()) -> Any:
            script.asked.append((prompt, sampling, tuple(stop)))
            return script.stream()

        def stream_chat(
            self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams, *, stop: Sequence[str] = ()
        ) -> Any:
            script.asked.append((list(messages), sampling, tuple(stop)))
            return script.stream()

    monkeypatch.setitem(sys.modules, "sluiceway.llm", SimpleNamespace(LLM=ScriptedLLM))
    return script
