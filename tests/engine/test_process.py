"""The loop of the engine between its pipes: its messages, its orders, and what it releases."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from sluiceway.engine.engine import Engine
from sluiceway.engine.fake_runner import FakeRunner
from sluiceway.engine.process import EngineLoop
from sluiceway.engine.scheduler.scheduler import Scheduler
from sluiceway.ipc.messages.to_child import Drain, PeerDown, PeerUp, Role
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, NewSequence, Submit, ToEngine
from sluiceway.ipc.messages.to_supervisor import Heartbeat, Ready
from sluiceway.ipc.messages.to_tokenizer import EngineAudit, EngineUp, FromEngine, SequenceEnd, StepOut
from sluiceway.types import EngineFacts, FinishReason, Rid
from support.pipes import Surroundings, received
from support.scheduling import engine_config, prompt_of, sampling

CONFIG = engine_config(n_blocks=50_000, max_model_len=200_000)
FACTS = EngineFacts(
    max_model_len=CONFIG.max_model_len,
    max_sequence_tokens=CONFIG.max_sequence_tokens,
    vocab_size=CONFIG.vocab_size,
    n_blocks=CONFIG.n_blocks,
    block_tokens=CONFIG.block_tokens,
)


class Neighbour:
    """The tokenizer's ends, and an engine in a thread behind them."""

    def __init__(self) -> None:
        self.around = around = Surroundings(Role.ENGINE)
        self.to_engine = around.outlet(around.addresses.tokenizer_to_engine, bind=True)
        self.from_engine = around.inlet(around.addresses.engine_to_tokenizer, FromEngine, bind=True)
        self.faults: list[Exception] = []
        # Its steps release the interpreter lock, as a model does: else the loop sends more than the test can read.
        runner = FakeRunner(n_blocks=CONFIG.n_blocks, block_tokens=CONFIG.block_tokens, step_s=0.001, sleep=time.sleep)
        engine = Engine(
            Scheduler(CONFIG),
            runner,
            draw_seed=lambda: 1,
            now_s=lambda: 0.0,
            on_fault=self.faults.append,
        )
        self.around.start(EngineLoop(around.context, around.addresses, engine, FACTS).run)
        assert received(self.from_engine, EngineUp) == EngineUp(FACTS)

    def push(self, *messages: ToEngine) -> None:
        for message in messages:
            self.to_engine.push(message)

    def submit(self, rid: Rid, max_tokens: int | None) -> None:
        """One sequence; None runs to the end of a long context."""
        params = sampling(max_tokens=max_tokens, ignore_eos=True)
        self.push(Submit((NewSequence(rid=rid, prompt_token_ids=tuple(prompt_of(rid, 4)), sampling=params),)))

    def ends(self, n: int) -> dict[Rid, SequenceEnd]:
        ends: dict[Rid, SequenceEnd] = {}
        while len(ends) < n:
            ends.update((end.rid, end) for end in received(self.from_engine, StepOut).ends)
        return ends

    def live(self) -> set[Rid]:
        """What it holds, as its audit says; no rule is broken."""
        self.push(AuditEngine(7))
        audit = received(self.from_engine, EngineAudit)
        assert (audit.query_id, audit.violations) == (7, ())
        return {sequence.rid for sequence in audit.live}


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    neighbour = Neighbour()
    yield neighbour
    neighbour.around.stop()
    assert neighbour.faults == []


def test_it_says_that_it_is_ready_and_that_it_lives(neighbour: Neighbour) -> None:
    """With what it can hold; also when nobody asks anything of it."""
    assert neighbour.around.reported(Ready).facts == {"blocks": 50_000, "max_model_len": 200_000}
    for _ in range(2):
        neighbour.around.reported(Heartbeat)


def test_tokens_and_one_end_come_for_what_was_submitted(neighbour: Neighbour) -> None:
    """The loop sleeps in between and wakes for the next."""
    for rid in (1, 2):
        neighbour.submit(rid, max_tokens=3)
        n_tokens = 0
        while True:
            out = received(neighbour.from_engine, StepOut)
            n_tokens += out.rids.count(rid)
            if out.ends:
                break
        assert n_tokens == 3
        assert [(end.rid, end.reason) for end in out.ends] == [(rid, FinishReason.LENGTH)]
    assert neighbour.live() == set()


def test_a_sequence_ends_when_it_is_aborted(neighbour: Neighbour) -> None:
    """With the reason that was given."""
    neighbour.submit(1, max_tokens=None)
    neighbour.push(Abort(1, FinishReason.SLOW_CLIENT))
    assert neighbour.ends(1)[1].reason is FinishReason.SLOW_CLIENT


def test_everything_is_released_when_the_tokenizer_dies(neighbour: Neighbour) -> None:
    """Nobody could turn its tokens into text any more, or cancel it. What comes after that is served."""
    neighbour.submit(1, max_tokens=None)
    neighbour.submit(2, max_tokens=None)
    assert neighbour.live() == {1, 2}
    neighbour.around.order(PeerDown(Role.TOKENIZER))
    assert {end.reason for end in neighbour.ends(2).values()} == {FinishReason.DISCONNECTED}
    neighbour.submit(3, max_tokens=2)
    assert neighbour.ends(1)[3].reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "order", [PeerDown(Role.TOKENIZER, hung=True), PeerDown(Role.API), PeerUp(Role.API), Drain(1.0)]
)
def test_it_goes_on_when_it_hears_anything_else(neighbour: Neighbour, order: PeerDown | PeerUp | Drain) -> None:
    """A process that hangs may recover; the tokenizer sends the cancels for a dead API process."""
    neighbour.submit(1, max_tokens=None)
    neighbour.around.order(order, PeerUp(Role.TOKENIZER))
    received(neighbour.from_engine, EngineUp)  # the answer to the second order: the first was heard
    assert neighbour.live() == {1}
    neighbour.push(Abort(1, FinishReason.CANCELLED))
    neighbour.ends(1)


@pytest.mark.parametrize("role", [Role.TOKENIZER, Role.API])
def test_it_introduces_itself_again_when_somebody_has_started(neighbour: Neighbour, role: Role) -> None:
    """Who starts again has not heard what it can hold."""
    neighbour.around.order(PeerUp(role))
    assert received(neighbour.from_engine, EngineUp) == EngineUp(FACTS)


def test_it_stops_in_the_midst_of_work(neighbour: Neighbour) -> None:
    """The fixture sees that it does."""
    neighbour.submit(1, max_tokens=None)
    assert received(neighbour.from_engine, StepOut)


def test_it_outlives_its_reader(neighbour: Neighbour) -> None:
    """Between threads a closed end is gone for good: what there is to say is lost, and orders are still obeyed."""
    neighbour.submit(1, max_tokens=None)
    neighbour.from_engine.close()
    for _ in range(2):
        neighbour.around.reported(Heartbeat)
