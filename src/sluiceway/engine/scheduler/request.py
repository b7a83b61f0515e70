"""One sequence as the engine sees it, and the machine of its states.

Theory of operation
-------------------
A request has *known* tokens (the prompt, then what was generated) and *computed* tokens (those whose keys and values
lie in its blocks). There is no prefill phase and no decode phase: steps let the second number catch up with the first,
and a step that catches up entirely samples one more known token. Losing the blocks therefore loses no information: the
number of computed tokens falls to zero, the known tokens are computed again, and the answer is the same.

========== ==================================================== ====== ======
state      meaning                                              queue  blocks
========== ==================================================== ====== ======
waiting    to be scheduled                                      yes    no
running    part of plans                                        no     yes
paused     left out of plans, it may go on at any time          no     yes
parked     left out of plans, to be computed again if it goes on no    no
preempted  its blocks were needed by an older one               yes    no
finished   it had its terminal                                  no     no
========== ==================================================== ====== ======

Pause, resume, park and finish are wishes from outside: each of them is in the table for every state. Schedule and
preempt are the scheduler's own moves, and where they make no sense they are not in the table and raise. To pause a
request that holds nothing is to park it; to preempt a paused one is to park it too, since it may not be scheduled.

========== ========= ======== ========= ======== ========= ========
state      schedule  pause    resume    park     preempt   finish
========== ========= ======== ========= ======== ========= ========
waiting    running   parked   waiting   parked   -         finished
running    -         paused   running   parked   preempted finished
paused     -         paused   running   parked   parked    finished
parked     -         parked   waiting   parked   -         finished
preempted  running   parked   preempted parked   -         finished
finished   -         finished finished  finished -         finished
========== ========= ======== ========= ======== ========= ========

What this file does not know: blocks, queues, other requests.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sluiceway.engine.scheduler.drafts import Drafter
from sluiceway.errors import InvariantError
from sluiceway.types import FinishReason, Rid, SamplingParams, StepId, TokenId


class State(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    PARKED = "parked"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Input(enum.Enum):
    """What can happen to a request."""

    SCHEDULE = "schedule"
    PAUSE = "pause"
    RESUME = "resume"
    PARK = "park"
    PREEMPT = "preempt"
    FINISH = "finish"


TRANSITIONS: dict[tuple[State, Input], State] = {
    (State.WAITING, Input.SCHEDULE): State.RUNNING,
    (State.WAITING, Input.PAUSE): State.PARKED,
    (State.WAITING, Input.RESUME): State.WAITING,
    (State.WAITING, Input.PARK): State.PARKED,
    (State.WAITING, Input.FINISH): State.FINISHED,
    (State.RUNNING, Input.PAUSE): State.PAUSED,
    (State.RUNNING, Input.RESUME): State.RUNNING,
    (State.RUNNING, Input.PARK): State.PARKED,
    (State.RUNNING, Input.PREEMPT): State.PREEMPTED,
    (State.RUNNING, Input.FINISH): State.FINISHED,
    (State.PAUSED, Input.PAUSE): State.PAUSED,
    (State.PAUSED, Input.RESUME): State.RUNNING,
    (State.PAUSED, Input.PARK): State.PARKED,
    (State.PAUSED, Input.PREEMPT): State.PARKED,
    (State.PAUSED, Input.FINISH): State.FINISHED,
    (State.PARKED, Input.PAUSE): State.PARKED,
    (State.PARKED, Input.RESUME): State.WAITING,
    (State.PARKED, Input.PARK): State.PARKED,
    (State.PARKED, Input.FINISH): State.FINISHED,
    (State.PREEMPTED, Input.SCHEDULE): State.RUNNING,
    (State.PREEMPTED, Input.PAUSE): State.PARKED,
    (State.PREEMPTED, Input.RESUME): State.PREEMPTED,
    (State.PREEMPTED, Input.PARK): State.PARKED,
    (State.PREEMPTED, Input.FINISH): State.FINISHED,
    (State.FINISHED, Input.PAUSE): State.FINISHED,
    (State.FINISHED, Input.RESUME): State.FINISHED,
    (State.FINISHED, Input.PARK): State.FINISHED,
    (State.FINISHED, Input.FINISH): State.FINISHED,
}

QUEUED = frozenset({State.WAITING, State.PREEMPTED})
"""States of a request that stands in the queue."""
SEATED = frozenset({State.RUNNING, State.PAUSED})
"""States of a request that has a slot, and blocks."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A sequence that asks to be admitted. `seed` is unsigned, 64 bit."""

    rid: Rid
    prompt: Sequence[TokenId]
    sampling: SamplingParams
    seed: int


class Request:
    """A sequence that was admitted. Changed only by its roster and its scheduler."""

    __slots__ = (
        "arrival",
        "drafter",
        "end_ids",
        "in_flight",
        "known",
        "max_length",
        "n_computed",
        "n_prompt",
        "rid",
        "sampling",
        "seed",
        "state",
        "was_planned",
    )

    def __init__(
        self,
        submission: Submission,
        *,
        arrival: int,
        max_sequence_tokens: int,
        eos_token_ids: Collection[TokenId],
        drafter: Drafter | None = None,
    ) -> None:
        sampling = submission.sampling
        self.rid = submission.rid
        self.known: list[TokenId] = list(submission.prompt)
        """Only ever appended to: rows in flight refer to it."""
        self.n_prompt = len(self.known)
        self.n_computed = 0
        self.sampling = sampling
        self.seed = submission.seed
        self.arrival = arrival
        """A smaller number is an older request."""
        self.max_length = _max_length(self.n_prompt, sampling.max_tokens, max_sequence_tokens)
        """Prompt and answer together, in tokens."""
        self.end_ids = frozenset(sampling.stop_token_ids).union(() if sampling.ignore_eos else eos_token_ids)
        self.state = State.WAITING
        self.in_flight: StepId | None = None
        """The step that computes for it now, unless its blocks were taken since: then nobody wants the result."""
        self.was_planned = False
        self.drafter = drafter
        """None: it does without speculation."""

    @property
    def n_generated(self) -> int:
        return len(self.known) - self.n_prompt

    @property
    def n_behind(self) -> int:
        """Known tokens that are not computed."""
        return len(self.known) - self.n_computed

    @property
    def is_queued(self) -> bool:
        return self.state in QUEUED

    @property
    def is_seated(self) -> bool:
        return self.state in SEATED

    @property
    def is_ready(self) -> bool:
        """May be part of the next plan. One step at a time computes for a request."""
        return self.state is State.RUNNING and self.in_flight is None

    def receive(self, given: Input) -> None:
        """Go to the next state. Raises `InvariantError` where the table has none."""
        self.state = next_state(self.state, given)

    def forget_computed(self) -> None:
        """Its blocks are gone: compute again, and take nothing from a step that is under way."""
        self.n_computed = 0
        self.in_flight = None
        if self.drafter is not None:
            self.drafter.forget()

    def draft(self, room: int) -> Sequence[TokenId]:
        """Tokens that may follow the known ones, `room` at most. Asked once a step, when one token is behind.

        One more is sampled after the last of them, and that must be allowed too. An end token is none of them: nothing
        follows it, and it is sampled without.
        """
        if self.drafter is None:
            return ()
        drafts = self.drafter.draft(self.known, min(room, self.max_length - len(self.known) - 1))
        for n, token_id in enumerate(drafts):
            if token_id in self.end_ids:
                return drafts[:n]
        return drafts

    def learn(self, n_drafts: int, n_accepted: int) -> None:
        """A step for it is over, and its tokens are known."""
        if self.drafter is not None:
            self.drafter.observe(self.known, self.n_computed, n_drafts, n_accepted)

    def append(self, token_id: TokenId) -> FinishReason | None:
        """Take a generated token; the reason, if the sequence ends with it.

        An end token on the last allowed place is a stop. Before `min_tokens` it is no end.
        """
        may_stop = self.n_generated >= self.sampling.min_tokens
        self.known.append(token_id)
        if may_stop and token_id in self.end_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.known) >= self.max_length else None


def next_state(state: State, given: Input) -> State:
    """The table, and `InvariantError` for what is not in it."""
    following = TRANSITIONS.get((state, given))
    if following is None:
        raise InvariantError(f"a request that is {state.value} cannot {given.value}")
    return following


def _max_length(n_prompt: int, max_tokens: int | None, max_sequence_tokens: int) -> int:
    if max_tokens is None:
        return max_sequence_tokens
    return min(n_prompt + max_tokens, max_sequence_tokens)
