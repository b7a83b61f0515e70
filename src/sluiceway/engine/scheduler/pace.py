"""How many prompt tokens a step may take beside running streams, learnt from how long steps took.

A long prompt is computed in chunks, and every chunk makes the streams that run beside it wait. So the budget of such a
step is a time, `target_s`; how many tokens fit into it depends on the machine, the model and who else is there. A step
that used its budget up says how many would have fitted, in proportion; the budget moves half of the way there. Since a
step also costs time that does not grow with its tokens, the proportion is wrong by less the nearer the target is.

Where steps without any prompt take longer than half of the target (a slow machine, a large batch), the target is twice
their time: to starve a prompt would not make anybody's gap short.
"""

from __future__ import annotations

MIN_CHUNK_TOKENS = 32
"""However slow the machine, a prompt gets on by this much in each step: below it, the step's fixed costs rule."""

_SMOOTHING = 0.1
"""The weight of the newest step in the mean of those without prompts."""


class Pace:
    """`chunk_tokens` is the budget for prompts in a step that running streams share."""

    def __init__(self, *, target_s: float, max_tokens: int) -> None:
        self._target_s = target_s
        self._max_tokens = max_tokens
        self._bare_step_s = 0.0
        self.chunk_tokens = min(max_tokens, max(MIN_CHUNK_TOKENS, max_tokens // 4))
        """A quarter of the whole to begin with, until there was a step to learn from."""

    def observe(self, prompt_tokens: int, step_s: float) -> None:
        """A step had so many prompt tokens and took that long. One with prompts that left room says nothing."""
        if prompt_tokens == 0:
            self._bare_step_s += (step_s - self._bare_step_s) * _SMOOTHING
            return
        if prompt_tokens < self.chunk_tokens or step_s <= 0.0:
            return
        fitting = prompt_tokens * max(self._target_s, 2.0 * self._bare_step_s) / step_s
        between = round((self.chunk_tokens + min(fitting, 2.0 * self._max_tokens)) / 2)
        self.chunk_tokens = min(self._max_tokens, max(MIN_CHUNK_TOKENS, between))
