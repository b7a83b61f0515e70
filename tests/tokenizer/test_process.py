"""The tokenizer process between its pipes: messages pass both ways, and nothing slow or broken stops it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from sluiceway.ipc.messages.to_api import Accepted, AuditReport, Delta, EngineIsUp, Events, Finished, Rejected, ToApi
from sluiceway.ipc.messages.to_child import PeerDown, PeerUp, Role
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, SetFlow, Submit, ToEngine
from sluiceway.ipc.messages.to_supervisor import Heartbeat, Ready
from sluiceway.ipc.messages.to_tokenizer import (
    AuditQuery,
    Cancel,
    EngineAudit,
    EngineUp,
    SequenceEnd,
    StepOut,
    TextPrompt,
    Tokenize,
)
from sluiceway.tokenizer.process import run_tokenizer
from sluiceway.tokenizer.text.byte_tokenizer import BOS_ID, ByteTokenizer
from sluiceway.tokenizer.translator import Translator
from sluiceway.types import EngineFacts, FinishReason, Flow, Held, Rid, SamplingParams, TokenId
from support.pipes import Surroundings, received
from support.snapshots import engine_stats

STATS = engine_stats(step_id=1, running=1, blocks_free=8, blocks_total=8)
LONG = "x" * 10_000
"""Long enough to be encoded in a thread."""


class Panic(BaseException):
    """Raised by the library when its Rust code panics: it is not an `Exception`."""


class BlockingTokenizer(ByteTokenizer):
    """Encodes long prompts only when the test allows it, and fails for some."""

    def __init__(self) -> None:
        self.may_continue = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[TokenId]:
        if text.startswith("panic"):
            raise Panic
        if text == LONG:
            self.may_continue.wait()
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)


class TokenizerProcess:
    """Runs a tokenizer process in a thread, and holds the ends of its pipes to the API process and the engine."""

    def __init__(self) -> None:
        self.around = around = Surroundings(Role.TOKENIZER)
        self.to_tokenizer = around.outlet(around.addresses.api_to_tokenizer, bind=True)
        self.from_tokenizer = around.inlet(around.addresses.tokenizer_to_api, ToApi, bind=True)
        self.tokenizer = BlockingTokenizer()
        around.start(lambda: asyncio.run(run_tokenizer(around.context, around.addresses, self.tokenizer)))
        assert around.reported(Ready).facts == {"vocab_size": 258}
        self.from_engine = around.outlet(around.addresses.engine_to_tokenizer, bind=False)
        self.to_engine = around.inlet(around.addresses.tokenizer_to_engine, ToEngine, bind=False)

    def ask(self, rid: Rid, text: str) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=8)
        self.to_tokenizer.push(Tokenize(rids=(rid,), prompts=(TextPrompt(text),), sampling=sampling))

    def submitted(self) -> Rid:
        """Return the next sequence that the engine gets."""
        (sequence,) = received(self.to_engine, Submit).sequences
        return sequence.rid

    def step(
        self, rid: Rid, token_ids: bytes = b"", *, starts: bool = False, reason: FinishReason | None = None
    ) -> None:
        """Send what the engine reports of one step."""
        self.from_engine.push(
            StepOut(
                rids=[rid] * len(token_ids),
                token_ids=list(token_ids),
                starts=[Accepted(rid, 3, 0)] if starts else [],
                rejections=[],
                ends=[SequenceEnd(rid, reason)] if reason else [],
                stats=STATS,
            )
        )

    def audit(self) -> tuple[int, int]:
        """Return the number of requests being encoded, and of sequences being decoded. The query passes the engine."""
        self.to_tokenizer.push(AuditQuery(5))
        assert received(self.to_engine, AuditEngine) == AuditEngine(5)
        self.from_engine.push(EngineAudit(query_id=5, stats=STATS, live=(), violations=()))
        report = received(self.from_tokenizer, AuditReport)
        return report.tokenizer_encoding, report.tokenizer_decoding


@pytest.fixture
def process() -> Iterator[TokenizerProcess]:
    process = TokenizerProcess()
    yield process
    process.tokenizer.may_continue.set()
    process.around.stop()


def test_heartbeats_are_sent_while_idle(process: TokenizerProcess) -> None:
    for _ in range(2):
        process.around.reported(Heartbeat)


def test_text_becomes_tokens_and_tokens_become_text(process: TokenizerProcess) -> None:
    """One message goes up for each message of the engine."""
    process.ask(1, "hi")
    (sequence,) = received(process.to_engine, Submit).sequences
    assert (sequence.rid, sequence.prompt_token_ids) == (1, (BOS_ID, *b"hi"))
    process.step(1, b"yo", starts=True)
    up = received(process.from_tokenizer, Events)
    assert (up.events, up.stats) == ([Accepted(1, 3, 0), Delta(1, "yo", (121, 111))], STATS)
    process.step(1, reason=FinishReason.LENGTH)
    assert received(process.from_tokenizer, Events).events == [
        Finished(rid=1, reason=FinishReason.LENGTH, completion_tokens=2)
    ]
    assert process.audit() == (0, 0)


def test_a_cancel_is_passed_on(process: TokenizerProcess) -> None:
    """The engine answers with the end of the sequence."""
    process.ask(1, "hi")
    assert process.submitted() == 1
    process.to_tokenizer.push(Cancel((1,), FinishReason.CANCELLED))
    assert received(process.to_engine, Abort) == Abort(1, FinishReason.CANCELLED)


def test_a_pause_is_passed_on(process: TokenizerProcess) -> None:
    process.ask(1, "hi")
    assert process.submitted() == 1
    process.to_tokenizer.push(SetFlow((1,), Flow.PAUSE))
    assert received(process.to_engine, SetFlow) == SetFlow((1,), Flow.PAUSE)


def test_long_prompt_does_not_delay_others(process: TokenizerProcess) -> None:
    """It is encoded in a thread. Later prompts are encoded and cancels are answered meanwhile."""
    process.ask(1, LONG)
    process.ask(2, LONG)
    process.ask(3, "short")
    assert process.submitted() == 3
    process.to_tokenizer.push(Cancel((2,), FinishReason.CANCELLED))
    assert received(process.from_tokenizer, Events).events == [
        Finished(rid=2, reason=FinishReason.CANCELLED, completion_tokens=0, held=Held("encoding", 0))
    ]
    process.tokenizer.may_continue.set()
    assert process.submitted() == 1
    assert process.audit() == (0, 2)


@pytest.mark.parametrize("text", ["panic", "panic" + LONG])
def test_a_prompt_that_makes_the_library_fail_is_answered(process: TokenizerProcess, text: str) -> None:
    """In the event loop or in a thread. No other request fails."""
    process.ask(1, text)
    (rejected,) = received(process.from_tokenizer, Events).events
    assert isinstance(rejected, Rejected) and (rejected.rids, rejected.refusal.code) == ((1,), "tokenizer_fault")
    process.ask(2, "hi")
    assert process.submitted() == 2


def test_the_limits_of_the_engine_are_passed_on_and_used(process: TokenizerProcess) -> None:
    """A prompt that cannot fit is refused here, before it is encoded."""
    facts = EngineFacts(max_model_len=100, max_sequence_tokens=100, vocab_size=258, n_blocks=8, block_tokens=16)
    process.from_engine.push(EngineUp(facts))
    assert received(process.from_tokenizer, EngineIsUp) == EngineIsUp(facts, ByteTokenizer.length_bound)
    process.ask(1, LONG)
    (rejected,) = received(process.from_tokenizer, Events).events
    assert isinstance(rejected, Rejected) and rejected.refusal.code == "context_length_exceeded"


def test_process_continues_after_an_exception_in_a_handler(
    process: TokenizerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: set[str] = set()
    handlers = ("tokenize", "cancel", "set_flow", "audit", "step_out", "engine_audit", "api_down", "engine_down")

    def fail(handler: str) -> None:
        broken.add(handler)
        raise RuntimeError("secret")

    process.ask(1, "hi")
    assert process.submitted() == 1
    with monkeypatch.context() as patched:
        for handler in handlers:
            patched.setattr(Translator, handler, lambda *_, handler=handler: fail(handler))
        process.ask(2, "lost")
        process.to_tokenizer.push(Cancel((1,), FinishReason.CANCELLED))
        process.to_tokenizer.push(SetFlow((1,), Flow.PAUSE))
        process.to_tokenizer.push(AuditQuery(4))
        process.step(1, b"lost")
        process.from_engine.push(EngineAudit(query_id=4, stats=STATS, live=(), violations=()))
        process.around.order(PeerDown(Role.API), PeerDown(Role.ENGINE))
        while broken != set(handlers):
            process.around.reported(Heartbeat)
    process.step(1, b"yo")
    assert received(process.from_tokenizer, Events).events == [Delta(1, "yo", tuple(b"yo"))]
    assert process.audit() == (0, 1)


def test_everything_is_forgotten_when_the_engine_dies(process: TokenizerProcess) -> None:
    """So is a prompt that is being encoded, though its thread continues."""
    process.ask(1, "hi")
    process.ask(2, LONG)
    assert process.submitted() == 1
    process.around.order(PeerDown(Role.ENGINE))
    while process.audit() != (0, 0):
        pass  # commands come by another pipe
    process.tokenizer.may_continue.set()
    process.ask(3, "hi")
    assert process.submitted() == 3


def test_everything_is_aborted_when_the_api_process_dies(process: TokenizerProcess) -> None:
    """A hung API process may come back, so nothing is aborted then."""
    process.ask(1, "hi")
    assert process.submitted() == 1
    process.around.order(PeerDown(Role.API, hung=True), PeerUp(Role.API), PeerDown(Role.API))
    assert received(process.to_engine, Abort) == Abort(1, FinishReason.DISCONNECTED)


def test_process_stops_while_a_long_prompt_is_encoded(process: TokenizerProcess) -> None:
    """The fixture waits for the end. The result of the thread is dropped."""
    process.ask(1, LONG)
    assert process.audit() == (1, 0)
