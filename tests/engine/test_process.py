"""The loop of the engine process: its messages, the supervisor's orders, and what it releases."""

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


class EngineProcess:
    """Runs an engine in a thread, and holds the tokenizer's ends of its pipes."""

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
        """Submit one sequence; without `max_tokens` it runs to the end of a long context."""
        params = sampling(max_tokens=max_tokens, ignore_eos=True)
        self.push(Submit((NewSequence(rid=rid, prompt_token_ids=tuple(prompt_of(rid, 4)), sampling=params),)))

    def ends(self, n: int) -> dict[Rid, SequenceEnd]:
        ends: dict[Rid, SequenceEnd] = {}
        while len(ends) < n:
            ends.update((end.rid, end) for end in received(self.from_engine, StepOut).ends)
        return ends

    def live(self) -> set[Rid]:
        """Return the live sequences of an audit, which finds no violation."""
        self.push(AuditEngine(7))
        audit = received(self.from_engine, EngineAudit)
        assert (audit.query_id, audit.violations) == (7, ())
        return {sequence.rid for sequence in audit.live}


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    engine = EngineProcess()
    yield engine
    engine.around.stop()
    assert engine.faults == []


def test_engine_reports_ready_and_sends_heartbeats(engine: EngineProcess) -> None:
    """Heartbeats come also when the engine is idle."""
    assert engine.around.reported(Ready).facts == {"blocks": 50_000, "max_model_len": 200_000}
    for _ in range(2):
        engine.around.reported(Heartbeat)


def test_submitted_sequences_get_their_tokens_and_one_end(engine: EngineProcess) -> None:
    """The loop sleeps between the two, and wakes for the second."""
    for rid in (1, 2):
        engine.submit(rid, max_tokens=3)
        n_tokens = 0
        while True:
            out = received(engine.from_engine, StepOut)
            n_tokens += out.rids.count(rid)
            if out.ends:
                break
        assert n_tokens == 3
        assert [(end.rid, end.reason) for end in out.ends] == [(rid, FinishReason.LENGTH)]
    assert engine.live() == set()


def test_aborted_sequence_ends_with_the_given_reason(engine: EngineProcess) -> None:
    engine.submit(1, max_tokens=None)
    engine.push(Abort(1, FinishReason.SLOW_CLIENT))
    assert engine.ends(1)[1].reason is FinishReason.SLOW_CLIENT


def test_everything_is_released_when_the_tokenizer_dies(engine: EngineProcess) -> None:
    """No process could turn the tokens into text or cancel the sequences. A later request is served."""
    engine.submit(1, max_tokens=None)
    engine.submit(2, max_tokens=None)
    assert engine.live() == {1, 2}
    engine.around.order(PeerDown(Role.TOKENIZER))
    assert {end.reason for end in engine.ends(2).values()} == {FinishReason.DISCONNECTED}
    engine.submit(3, max_tokens=2)
    assert engine.ends(1)[3].reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "order", [PeerDown(Role.TOKENIZER, hung=True), PeerDown(Role.API), PeerUp(Role.API), Drain(1.0)]
)
def test_engine_continues_after_other_orders(engine: EngineProcess, order: PeerDown | PeerUp | Drain) -> None:
    """A process that hangs may recover. For a dead API process, the tokenizer sends the cancels."""
    engine.submit(1, max_tokens=None)
    engine.around.order(order, PeerUp(Role.TOKENIZER))
    received(engine.from_engine, EngineUp)  # the answer to the second order: the first was heard
    assert engine.live() == {1}
    engine.push(Abort(1, FinishReason.CANCELLED))
    engine.ends(1)


@pytest.mark.parametrize("role", [Role.TOKENIZER, Role.API])
def test_engine_sends_its_facts_again_when_a_process_has_restarted(engine: EngineProcess, role: Role) -> None:
    engine.around.order(PeerUp(role))
    assert received(engine.from_engine, EngineUp) == EngineUp(FACTS)


def test_engine_stops_while_it_works(engine: EngineProcess) -> None:
    """The fixture checks that it stops."""
    engine.submit(1, max_tokens=None)
    assert received(engine.from_engine, StepOut)


def test_engine_continues_when_its_reader_is_gone(engine: EngineProcess) -> None:
    """Its messages are lost then, and it still obeys orders."""
    engine.submit(1, max_tokens=None)
    engine.from_engine.close()
    for _ in range(2):
        engine.around.reported(Heartbeat)
