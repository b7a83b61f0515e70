"""The one seam between the engine and whatever computes: a model in torch, or a fake for tests and the lab."""

from __future__ import annotations

from typing import Protocol

from sluiceway.engine.scheduler.plan import Plan, StepResult


class Step(Protocol):
    """A launched step."""

    def wait(self) -> StepResult:
        """The sampled tokens; blocks until they exist. Called once."""


class Runner(Protocol):
    """Computes plans over a paged cache of `n_blocks` blocks that it owns.

    `launch` may compute at once or in the background; steps are waited for in the order of their launch. Everything
    that the plan refers to stays as it is until `wait` returns. A runner never depends on which rows share a batch:
    the same row gives the same token alone and in a crowd, and after drafts the one that it gives where they are known.
    """

    def launch(self, plan: Plan) -> Step: ...
