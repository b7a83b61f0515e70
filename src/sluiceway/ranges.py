"""The ranges of what a caller may ask for: one table for HTTP, the command line and `LLM`.

`protocols.openai.schema` holds requests to it and `cli.options` holds flags to it. `LLM` checks with the schema.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """Finite numbers from `low` to `high`. With `is_above`, `low` itself is outside."""

    low: int
    high: int
    is_above: bool = False

    def holds(self, value: float) -> bool:
        """Whether the number lies in it; NaN lies in none."""
        return (self.low < value if self.is_above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        return f"above {self.low} and at most {self.high}" if self.is_above else f"from {self.low} to {self.high}"


MAX_COUNT = (1 << 31) - 1
"""The largest count: a 32-bit integer holds it in every client and in every kernel."""

# How tokens are chosen.
TEMPERATURE = Range(0, 2)
TOP_P = Range(0, 1, is_above=True)
TOP_K = Range(-1, MAX_COUNT)
MIN_P = Range(0, 1)
SEED = Range(-(1 << 63), (1 << 64) - 1)
PENALTY = Range(-2, 2)
REPETITION_PENALTY = Range(0, 2, is_above=True)
LOGIT_BIAS = Range(-100, 100)

# Bounds of tokens, choices and log-probabilities.
MAX_TOKENS = Range(1, MAX_COUNT)
MIN_TOKENS = Range(0, MAX_COUNT)
CHOICES = Range(1, 128)
LOGPROBS = Range(0, 20)
COMPLETION_LOGPROBS = Range(0, 5)
"""OpenAI's bounds, both: the older endpoint has the lower one."""

# What a stream may wait for: a reader, or its next comment.
WAIT_S = Range(0, 3600)
