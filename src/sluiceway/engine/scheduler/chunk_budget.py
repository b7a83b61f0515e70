"""How many prompt tokens a step may compute beside running streams, learnt from how long steps take.

A long prompt is computed in chunks, and every chunk delays the streams that run beside it. So the budget of such a step
is a time, `target_s`. How many tokens fit into it depends on the machine, the model and the other sequences. A step
that used up its budget shows how many tokens would have fitted, in proportion; the budget moves half of the way there.
A step also costs time that does not grow with its tokens. So the proportion is wrong, but less wrong the nearer the
target is.

Where steps without any prompt take longer than half of the target (a slow machine, a large batch), the target is twice
their time: delaying the prompt further would not shorten the latency of any stream.
"""

from __future__ import annotations

MIN_CHUNK_TOKENS = 32
"""A prompt advances by this many tokens in each step, however slow the machine: in smaller chunks the fixed costs of a
step dominate."""

_SMOOTHING = 0.1
"""The weight of the newest step in the mean time of steps without prompts."""


class ChunkBudget:
    """Keeps `chunk_tokens`, the budget for prompts in a step that running streams share."""

    def __init__(self, *, target_s: float, max_tokens: int) -> None:
        self._target_s = target_s
        self._max_tokens = max_tokens
        self._bare_step_s = 0.0
        self.chunk_tokens = min(max_tokens, max(MIN_CHUNK_TOKENS, max_tokens // 4))
        """It starts at a quarter of the whole budget, until a step has shown more."""

    def observe(self, prompt_tokens: int, step_s: float) -> None:
        """Learn from a step with this many prompt tokens. A step whose prompts left room shows nothing."""
        if prompt_tokens == 0:
            self._bare_step_s += (step_s - self._bare_step_s) * _SMOOTHING
            return
        if prompt_tokens < self.chunk_tokens or step_s <= 0.0:
            return
        fitting = prompt_tokens * max(self._target_s, 2.0 * self._bare_step_s) / step_s
        between = round((self.chunk_tokens + min(fitting, 2.0 * self._max_tokens)) / 2)
        self.chunk_tokens = min(self._max_tokens, max(MIN_CHUNK_TOKENS, between))
