"""The interface between the engine and what computes: a model in torch, or a fake runner."""

from __future__ import annotations

from typing import Protocol

from sluiceway.engine.scheduler.plan import Plan, StepResult


class Step(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """Return the sampled tokens; blocks until they exist. Called once."""


class Runner(Protocol):
    """Computes plans over a paged cache of `n_blocks` blocks that it owns.

    `launch` may compute immediately or in the background; steps are waited for in the order of their launch. Everything
    that the plan refers to stays unchanged until `wait` returns. A result never depends on the other rows of a batch:
    a row gives the same token alone and in a batch, and the same after drafts as after known tokens.
    """

    def launch(self, plan: Plan) -> Step: ...
