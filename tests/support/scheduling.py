"""For tests of the scheduler: small configurations, submissions, and a loop that runs it."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable

from sluiceway.config import EngineConfig
from sluiceway.engine.fake_runner import FakeRunner
from sluiceway.engine.runner import Step
from sluiceway.engine.scheduler.drafts import Drafter
from sluiceway.engine.scheduler.plan import Plan, StepResult
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.engine.scheduler.sequence import Sequence, Submission
from sluiceway.ipc.messages.to_tokenizer import SequenceEnd
from sluiceway.types import Rid, SamplingParams, Speculation, TokenId

EOS = 256


def engine_config(
    *,
    n_blocks: int = 64,
    max_model_len: int = 256,
    block_tokens: int = 4,
    max_running: int = 4,
    max_waiting: int = 100,
    max_step_tokens: int = 16,
    speculation: Speculation = "off",
    max_draft_tokens: int = 4,
) -> EngineConfig:
    """A small engine over bytes and an end token."""
    return EngineConfig(
        n_blocks=n_blocks,
        max_model_len=max_model_len,
        vocab_size=258,
        eos_token_ids=(EOS,),
        block_tokens=block_tokens,
        max_running=max_running,
        max_waiting=max_waiting,
        max_step_tokens=max_step_tokens,
        speculation=speculation,
        max_draft_tokens=max_draft_tokens,
    )


def sampling(
    *,
    max_tokens: int | None = 8,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: tuple[TokenId, ...] = (),
    logit_bias: tuple[tuple[TokenId, float], ...] = (),
    speculation: Speculation | None = None,
) -> SamplingParams:
    """The sampling parameters that the scheduler uses."""
    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        stop_token_ids=stop_token_ids,
        logit_bias=logit_bias,
        speculation=speculation,
    )


def prompt_of(rid: Rid, n_tokens: int) -> list[TokenId]:
    """Tokens that differ from those of every other sequence."""
    return [(rid * 31 + position * 7) % 256 for position in range(n_tokens)]


def submission(rid: Rid = 1, n_prompt: int = 4, params: SamplingParams | None = None, seed: int = 0) -> Submission:
    return Submission(rid, prompt_of(rid, n_prompt), params or sampling(), seed)


def request(
    rid: Rid = 1,
    n_prompt: int = 4,
    params: SamplingParams | None = None,
    *,
    arrival: int = 0,
    limit: int = 256,
    drafter: Drafter | None = None,
) -> Sequence:
    """Return an accepted sequence that waits for a slot."""
    return Sequence(
        submission(rid, n_prompt, params),
        arrival=arrival,
        max_sequence_tokens=limit,
        eos_token_ids=(EOS,),
        drafter=drafter,
    )


def result_of(plan: Plan, token_id: TokenId = 1) -> StepResult:
    """Return a result in which every token is the same."""
    return StepResult(plan.step_id, [token_id for row in plan.rows for _ in range(row.n_samples)])


class SchedulerLoop:
    """Runs a scheduler with a fake runner and records its messages. With `checks` it checks the invariants."""

    def __init__(self, config: EngineConfig, *, eos_every: int = 0, period: int = 0, checks: bool = True) -> None:
        self.scheduler = Scheduler(config)
        self.checks = checks
        self.runner = FakeRunner(
            n_blocks=config.n_blocks,
            block_tokens=config.block_tokens,
            eos_token_id=EOS,
            eos_every=eos_every,
            period=period,
        )
        self.in_flight: list[tuple[Plan, Step]] = []
        self.tokens: dict[Rid, list[TokenId]] = {}
        self.ends: list[SequenceEnd] = []

    def submit(self, *group: Submission) -> None:
        self.scheduler.submit(group)

    def launch(self) -> Plan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.in_flight.append((plan, self.runner.launch(plan)))
        self._check()
        return plan

    def settle(self) -> None:
        plan, step = self.in_flight.pop(0)
        self.scheduler.commit(plan, step.wait())
        self._check()
        self.record()

    def step(self) -> Plan | None:
        """Plan, compute and commit one step; return None if there is nothing to plan."""
        plan = self.launch()
        if plan is not None:
            self.settle()
        return plan

    def run(self, max_steps: int = 10_000) -> int:
        """Run steps until there is nothing to plan, and return their number."""
        for n_steps in range(max_steps):
            if self.step() is None:
                return n_steps
        raise AssertionError(f"not finished after {max_steps} steps")

    def _check(self) -> None:
        if self.checks:
            self.scheduler.check()

    def record(self) -> None:
        outputs = self.scheduler.drain()
        for rid, token_id in zip(outputs.rids, outputs.token_ids, strict=True):
            self.tokens.setdefault(rid, []).append(token_id)
        self.ends += outputs.ends


def answers_alone(
    config: EngineConfig, submissions: Iterable[Submission], *, period: int = 0
) -> dict[Rid, abc.Sequence[TokenId]]:
    """Return the tokens that each sequence gets when it runs alone."""
    answers: dict[Rid, abc.Sequence[TokenId]] = {}
    for each in submissions:
        loop = SchedulerLoop(config, period=period)
        loop.submit(each)
        loop.run()
        answers[each.rid] = loop.tokens[each.rid]
    return answers
