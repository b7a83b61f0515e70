"""Who is where, and what each one holds: the place where a change of state takes effect.

Three tables, kept in step by one method, `move`: all live requests; those in the queue; those that are seated, which
means that they have a slot and blocks. What a state implies (queue, seat) is said in `request`; `move` compares what
was implied before with what is implied after, so no caller releases anything by hand.
"""

from __future__ import annotations

from sluiceway.config import EngineConfig
from sluiceway.engine.scheduler.blocks import BlockPool, blocks_for
from sluiceway.engine.scheduler.leases import Leases
from sluiceway.engine.scheduler.queue import WaitingQueue
from sluiceway.engine.scheduler.request import Input, Request, State
from sluiceway.types import Held, LiveSequence, Rid, StepId


class Roster:
    """The engine's tables of live requests. `launched` is the fence: the last step that may write anybody's blocks."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_running = config.max_running
        self._block_tokens = config.block_tokens
        self.pool = BlockPool(config.n_blocks)
        self.leases = Leases(self.pool)
        self.queue = WaitingQueue()
        self.live: dict[Rid, Request] = {}
        self.seated: dict[Rid, Request] = {}
        self.n_running = 0
        self.launched: StepId = 0

    @property
    def n_free_seats(self) -> int:
        return self._max_running - len(self.seated)

    def enter(self, request: Request) -> None:
        """A newcomer goes to the end of the queue."""
        self.leases.open(request.rid)
        self.live[request.rid] = request
        self.queue.push_back(request)

    def move(self, request: Request, given: Input) -> None:
        """Change the state, and with it the tables and what the request holds."""
        was_queued, was_seated = request.is_queued, request.is_seated
        self.n_running -= request.state is State.RUNNING
        request.receive(given)
        self.n_running += request.state is State.RUNNING
        if was_queued and not request.is_queued:
            self.queue.remove(request.rid)
        if was_seated and not request.is_seated:
            self._unseat(request)
        if request.is_queued and not was_queued:
            self.queue.push_front(request)
        if request.state is State.FINISHED:
            del self.live[request.rid]
            self.leases.retire(request.rid, fence=self.launched)

    def next_to_seat(self) -> Request | None:
        """The head of the queue, if it can start now.

        Beyond what it needs itself, one block stays for each running request, so that a start is not followed at once
        by a preemption. With nobody running that is nothing: whatever was admitted can start some time.
        """
        request = self.queue.first()
        if request is None or self.n_free_seats < 1:
            return None
        n_blocks = self.n_missing_blocks(request) + self.n_running
        return request if n_blocks <= self.pool.n_free else None

    def seat(self, request: Request) -> None:
        """Give a slot, and blocks for all known tokens. Raises `InvariantError` if the pool has not enough."""
        self.cover(request)
        self.move(request, Input.SCHEDULE)
        self.seated[request.rid] = request

    def n_missing_blocks(self, request: Request, n_drafts: int = 0) -> int:
        """Blocks that its known tokens, and so many drafts after them, need beyond those it has."""
        n_held = len(self.leases.blocks_of(request.rid))
        return max(0, blocks_for(len(request.known) + n_drafts, self._block_tokens) - n_held)

    def cover(self, request: Request, n_drafts: int = 0) -> None:
        """Take the missing blocks. Raises `InvariantError` if the pool has fewer."""
        self.leases.grow(request.rid, self.n_missing_blocks(request, n_drafts))

    def draft_room(self, request: Request) -> int:
        """How many drafts fit behind its known tokens while one block stays free for each running request."""
        n_spare = max(0, self.pool.n_free - self.n_running)
        n_blocks = len(self.leases.blocks_of(request.rid)) + n_spare
        return n_blocks * self._block_tokens - len(request.known)

    def held_by(self, request: Request) -> Held:
        """What it holds now."""
        return Held(request.state.value, len(self.leases.blocks_of(request.rid)))

    def live_sequences(self) -> tuple[LiveSequence, ...]:
        """Everything that is held, in order of arrival."""
        return tuple(
            LiveSequence(
                rid=request.rid,
                state=request.state.value,
                known_tokens=len(request.known),
                computed_tokens=request.n_computed,
                blocks=len(self.leases.blocks_of(request.rid)),
            )
            for request in self.live.values()
        )

    def _unseat(self, request: Request) -> None:
        del self.seated[request.rid]
        request.forget_computed()
        self.leases.vacate(request.rid, fence=self.launched)
