"""The registry of endpoints, and what a worker process runs to read their bodies."""

from __future__ import annotations

from collections.abc import Callable

from sluiceway.protocols.common.reading import body_reader
from sluiceway.protocols.native.requests import GENERATE, STREAM
from sluiceway.protocols.openai.requests import CHAT, COMPLETIONS

ENDPOINTS = (CHAT, COMPLETIONS, STREAM, GENERATE)


def build(init: bytes) -> Callable[[bytes], bytes]:
    """Make the function that does the jobs of a worker process. `init` is the name of the served model."""
    return body_reader(ENDPOINTS, init.decode())
