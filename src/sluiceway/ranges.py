"""Ranges of numbers: of the configuration, of what a request may ask for, and the rows of sampling parameters.

The fields of `config.ServeConfig` carry a `Range`. The fields of `types.SamplingParams` carry a `SamplingParameter`:
they are the one table of sampling parameters, from which the HTTP protocols, the command line and `LLM` are made.
"""

from __future__ import annotations

from typing import NamedTuple


class Range(NamedTuple):
    """Finite numbers from `low` to `high`. With `is_above`, `low` itself is outside."""

    low: float
    high: float
    is_above: bool = False

    def holds(self, value: float) -> bool:
        """True when the number is in the range; NaN is in none."""
        return (self.low < value if self.is_above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        return f"above {self.low} and at most {self.high}" if self.is_above else f"from {self.low} to {self.high}"


class SamplingParameter(NamedTuple):
    """Says of a field of `types.SamplingParams` which values a caller may set.

    Every protocol and `LLM` accept a field of that name. With `help`, `sluiceway generate` and `chat` have a flag too.
    """

    bounds: Range | None = None
    """Its range; None for a field that is no number."""
    help: str = ""


MAX_COUNT = (1 << 31) - 1
"""The largest count: a 32-bit integer holds it in every client and in every kernel."""

MAX_TOKENS = Range(1, MAX_COUNT)
LOGIT_BIAS = Range(-100, 100)
CHOICES = Range(1, 128)
"""Choices of one prompt, and of all prompts of a request together."""
LOGPROBS = Range(0, 20)
COMPLETION_LOGPROBS = Range(0, 5)
"""How many of the likeliest tokens are shown. Both are OpenAI's bounds; the older endpoint has the lower one."""
WAIT_S = Range(0, 3600)
"""How long a stream may wait for a reader, or for its next comment."""
MARK = Range(0, 1 << 40)
MARK_S = Range(0, 86_400)
"""The marks of a policy for slow readers, in bytes or events, and its times."""
