"""The registry of architectures: which models are served."""

from __future__ import annotations

from collections.abc import Mapping

from sluiceway.model.architectures.architecture import Architecture
from sluiceway.model.architectures.llama import LLAMA
from sluiceway.model.architectures.mistral import MISTRAL
from sluiceway.model.architectures.qwen2 import QWEN2
from sluiceway.model.architectures.qwen3 import QWEN3

ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3)

BY_NAME: Mapping[str, Architecture] = {architecture.name: architecture for architecture in ARCHITECTURES}
BY_GGUF_NAME: Mapping[str, Architecture] = {
    architecture.gguf_name: architecture for architecture in ARCHITECTURES if architecture.gguf_name is not None
}
