"""One sequence as the engine sees it, and the table of its states.

Theory of operation
-------------------
A sequence has *known* tokens (the prompt, then what was generated) and *computed* tokens (those whose keys and values
are in its blocks). There is no prefill phase and no decode phase: steps let the second number catch up with the first,
and a step that catches up entirely samples one more known token. So losing the blocks loses no information: the number
of computed tokens falls to zero, the known tokens are computed again, and the answer is the same.

========== ==================================================== ====== ======
state      meaning                                              queue  blocks
========== ==================================================== ====== ======
waiting    waits to be scheduled                                yes    no
running    part of batches                                      no     yes
paused     left out of batches; it may run again at any time    no     yes
parked     left out; it is computed again when it runs again    no     no
preempted  an older sequence took its blocks                    yes    no
finished   its end was sent                                     no     no
========== ==================================================== ====== ======

Pause, resume, park and finish are commands from outside: the table has each of them for every state. Schedule and
preempt are moves of the scheduler; where they make no sense they are not in the table and raise. Pausing a sequence
that holds nothing parks it. Preempting a paused sequence parks it too, since it may not be scheduled.

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

What this file does not know: blocks, queues, other sequences.
"""

from __future__ import annotations

import enum
from collections import abc
from collections.abc import Collection
from dataclasses import dataclass

from sluiceway.engine.scheduler.drafts import Drafter
from sluiceway.errors import InvariantError
from sluiceway.types import FinishReason, Rid, SamplingParams, StepId, TokenId


class State(enum.Enum):
    """Where a sequence is; the docstring of this module defines each state."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    PARKED = "parked"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class Input(enum.Enum):
    """What can happen to a sequence."""

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
"""States of a sequence in the queue."""
WITH_SLOT = frozenset({State.RUNNING, State.PAUSED})
"""States of a sequence that has a slot, and blocks."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A sequence that is not accepted yet. `seed` is unsigned, 64 bits."""

    rid: Rid
    prompt: abc.Sequence[TokenId]
    sampling: SamplingParams
    seed: int


class Sequence:
    """An accepted sequence: its tokens, its state, and what its next step computes."""

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
        """Tokens are only appended: rows in flight refer to this list."""
        self.n_prompt = len(self.known)
        self.n_computed = 0
        self.sampling = sampling
        self.seed = submission.seed
        self.arrival = arrival
        """A smaller number is an older sequence."""
        self.max_length = _max_length(self.n_prompt, sampling.max_tokens, max_sequence_tokens)
        """Prompt and answer together, in tokens."""
        self.end_ids = frozenset(sampling.stop_token_ids).union(() if sampling.ignore_eos else eos_token_ids)
        self.state = State.WAITING
        self.in_flight: StepId | None = None
        """The step that computes it now; None also if its blocks were taken since, which makes the result useless."""
        self.was_planned = False
        self.drafter = drafter
        """None: without speculation."""

    @property
    def n_generated(self) -> int:
        """Generated tokens."""
        return len(self.known) - self.n_prompt

    @property
    def n_uncomputed(self) -> int:
        """Known tokens that are not computed."""
        return len(self.known) - self.n_computed

    @property
    def is_queued(self) -> bool:
        """True when it is in the queue."""
        return self.state in QUEUED

    @property
    def has_slot(self) -> bool:
        """True when it has a slot, and blocks."""
        return self.state in WITH_SLOT

    @property
    def is_ready(self) -> bool:
        """True when it may be part of the next batch. Only one step at a time computes a sequence."""
        return self.state is State.RUNNING and self.in_flight is None

    def receive(self, given: Input) -> None:
        """Go to the next state. Raises `InvariantError` if the table has none."""
        self.state = next_state(self.state, given)

    def forget_computed(self) -> None:
        """Compute everything again, since the blocks are gone, and take nothing from a step in flight."""
        self.n_computed = 0
        self.in_flight = None
        if self.drafter is not None:
            self.drafter.forget()

    def draft(self, room: int) -> abc.Sequence[TokenId]:
        """At most `room` tokens that may follow the known ones. Called once per step, when one token is uncomputed.

        One more token is sampled after the last draft, so the length must allow it too. Drafts end before an end token:
        nothing follows it, and it can be sampled without a draft.
        """
        if self.drafter is None:
            return ()
        drafts = self.drafter.draft(self.known, min(room, self.max_length - len(self.known) - 1))
        for n, token_id in enumerate(drafts):
            if token_id in self.end_ids:
                return drafts[:n]
        return drafts

    def learn(self, n_drafts: int, n_accepted: int) -> None:
        """Learn from a step whose tokens are known now."""
        if self.drafter is not None:
            self.drafter.observe(self.known, self.n_computed, n_drafts, n_accepted)

    def append(self, token_id: TokenId) -> FinishReason | None:
        """Add a generated token. Returns the finish reason if the sequence finishes with it.

        An end token at the last allowed position is a stop. Before `min_tokens` it does not finish the sequence.
        """
        may_stop = self.n_generated >= self.sampling.min_tokens
        self.known.append(token_id)
        if may_stop and token_id in self.end_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.known) >= self.max_length else None


def next_state(state: State, given: Input) -> State:
    """Look the transition up. Raises `InvariantError` for a pair that is not in the table."""
    following = TRANSITIONS.get((state, given))
    if following is None:
        raise InvariantError(f"a sequence that is {state.value} cannot {given.value}")
    return following


def _max_length(n_prompt: int, max_tokens: int | None, max_sequence_tokens: int) -> int:
    if max_tokens is None:
        return max_sequence_tokens
    return min(n_prompt + max_tokens, max_sequence_tokens)
