"""Every sequence between its text and its tokens: each gets its deltas and exactly one end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from sluiceway.engine.scheduler.seeds import seed_of_choice
from sluiceway.errors import PeerGone, Refusal, invalid
from sluiceway.ipc.messages import to_engine
from sluiceway.ipc.messages.to_api import (
    Accepted,
    AuditReport,
    Delta,
    Event,
    Events,
    Finished,
    Progressed,
    Rejected,
    ToApi,
)
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, SetFlow, Submit, ToEngine
from sluiceway.ipc.messages.to_tokenizer import (
    AuditQuery,
    Cancel,
    ChatPrompt,
    EngineAudit,
    Forget,
    Prompt,
    SequenceEnd,
    StepOut,
    TextPrompt,
    Tokenize,
    TokenPrompt,
)
from sluiceway.refusals import unavailable
from sluiceway.tokenizer.prompts import Encoded
from sluiceway.tokenizer.text.byte_tokenizer import EOS_ID, ByteTokenizer
from sluiceway.tokenizer.text.detokenizer import Detokenizer, TokenBytes
from sluiceway.tokenizer.translator import Translator
from sluiceway.types import FinishReason, Flow, Held, Logprobs, Progress, SamplingParams
from support.snapshots import engine_stats

STATS = engine_stats(step_id=1, blocks_free=8, blocks_total=8)
GREEDY = SamplingParams(temperature=0.0, max_tokens=64)


class Desk:
    """A translator with its surroundings: what it sent, and encodings that a test finishes when it likes."""

    def __init__(self, *, is_threaded: bool = False, tokenizer: ByteTokenizer | None = None) -> None:
        self.sent: list[ToApi] = []
        self.engine: list[ToEngine] = []
        self.is_engine_gone = False
        self.pending: list[Callable[[], None]] = []
        self.n_dropped = 0
        self.unsendable: type[Event] | None = None
        """What the pipe to the API process does not take."""
        self._is_threaded = is_threaded
        self._tokenizer = tokenizer or ByteTokenizer()
        self.translator = Translator(
            self._tokenizer, to_api=self._to_api, to_engine=self._to_engine, encode=self._encode
        )

    def _to_api(self, message: ToApi) -> None:
        if isinstance(message, Events) and self.unsendable is not None:
            if any(isinstance(event, self.unsendable) for event in message.events):
                raise ValueError("cannot be encoded")
        self.sent.append(message)

    def _to_engine(self, message: ToEngine) -> None:
        if self.is_engine_gone:
            raise PeerGone("gone")
        self.engine.append(message)

    def _encode(self, prompts: Sequence[Prompt], done: Callable[[Encoded], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                outcome: Encoded = [self._tokens_of(prompt) for prompt in prompts]
            except BaseException as exc:
                outcome = exc
            done(outcome)

        if self._is_threaded:
            self.pending.append(run)
        else:
            run()
        return self._drop

    def _tokens_of(self, prompt: Prompt) -> list[int]:
        match prompt:
            case TextPrompt(text):
                return self._tokenizer.encode(text)
            case TokenPrompt(token_ids):
                return list(token_ids)
            case ChatPrompt(messages):
                return [ord(message.content) for message in messages]

    def _drop(self) -> None:
        self.n_dropped += 1

    def ask(
        self, *rids: int, prompt: Prompt | None = None, stop: tuple[str, ...] = (), sampling: SamplingParams = GREEDY
    ) -> None:
        self.translator.tokenize(
            Tokenize(rids=rids, prompts=(prompt or TextPrompt("hi"),), sampling=sampling, stop=stop)
        )

    def step(
        self,
        tokens: list[tuple[int, int]] | None = None,
        *,
        starts: list[Accepted] | None = None,
        rejections: list[Rejected] | None = None,
        ends: list[SequenceEnd] | None = None,
        logprobs: dict[int, Logprobs] | None = None,
    ) -> list[Event]:
        """One step of the engine; the events that it led to."""
        tokens = tokens or []
        self.translator.step_out(
            StepOut(
                rids=[rid for rid, _ in tokens],
                token_ids=[token_id for _, token_id in tokens],
                starts=starts or [],
                rejections=rejections or [],
                ends=ends or [],
                stats=STATS,
                logprobs=logprobs or {},
            )
        )
        return self.take_events()

    def take_events(self) -> list[Event]:
        taken, self.sent[:] = list(self.sent), []
        return [event for message in taken if isinstance(message, Events) for event in message.events]


def _bytes(rid: int, text: str) -> list[tuple[int, int]]:
    return [(rid, byte) for byte in text.encode()]


def _end(rid: int, reason: FinishReason) -> SequenceEnd:
    return SequenceEnd(rid, reason)


def test_sequence_is_submitted_with_its_tokens_when_a_prompt_arrives() -> None:
    """Text prompts are encoded, token prompts are taken as they are, choices share their prompt."""
    desk = Desk()
    desk.translator.tokenize(
        Tokenize(
            rids=(1, 2, 3, 4),
            prompts=(TextPrompt("ab"), TokenPrompt((7, 8, 9))),
            sampling=SamplingParams(seed=10),
        )
    )
    text = tuple(ByteTokenizer().encode("ab"))
    second = SamplingParams(seed=seed_of_choice(10, 1))
    assert desk.engine == [
        Submit(
            (
                to_engine.NewSequence(rid=1, prompt_token_ids=text, sampling=SamplingParams(seed=10)),
                to_engine.NewSequence(rid=2, prompt_token_ids=text, sampling=second),
                to_engine.NewSequence(rid=3, prompt_token_ids=(7, 8, 9), sampling=SamplingParams(seed=10)),
                to_engine.NewSequence(rid=4, prompt_token_ids=(7, 8, 9), sampling=second),
            )
        )
    ]
    assert desk.translator.n_decoding == 4


def test_text_flows_when_tokens_arrive() -> None:
    """Accepted, deltas with their token ids, and the one end with its count."""
    desk = Desk()
    desk.ask(1)
    assert desk.step(starts=[Accepted(1, 2, 0)]) == [Accepted(1, 2, 0)]
    assert desk.step(_bytes(1, "He")) == [Delta(1, "He", (72, 101))]
    events = desk.step(_bytes(1, "y"), ends=[_end(1, FinishReason.LENGTH)])
    assert events == [Delta(1, "y", (121,)), Finished(rid=1, reason=FinishReason.LENGTH, completion_tokens=3)]
    assert desk.translator.n_decoding == 0


def test_half_a_character_waits_when_its_rest_is_to_come() -> None:
    """The token counts at once, its text comes with the last byte."""
    desk = Desk()
    desk.ask(1)
    first, second = "é".encode()
    assert desk.step([(1, first)]) == [Delta(1, "", (first,))]
    assert desk.step([(1, second)]) == [Delta(1, "é", (second,))]


def test_tail_is_not_lost_when_the_end_cuts_a_character() -> None:
    """What a full decoding shows for half a character is shown at the end."""
    desk = Desk()
    desk.ask(1)
    first = "é".encode()[0]
    events = desk.step([(1, first)], ends=[_end(1, FinishReason.LENGTH)])
    assert events[1] == Delta(1, "�", ())
    assert isinstance(events[2], Finished)


def test_end_token_has_no_text_when_it_is_an_ordinary_token() -> None:
    """A token of `stop_token_ids` counts, but is not part of the answer."""
    desk = Desk()
    desk.ask(1)
    events = desk.step(_bytes(1, "A"))
    events += desk.step(_bytes(1, "!"), ends=[_end(1, FinishReason.STOP)])
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "A"
    assert events[-1] == Finished(rid=1, reason=FinishReason.STOP, completion_tokens=2)


def test_text_is_cut_and_the_engine_told_when_a_stop_string_completes() -> None:
    """Across tokens; what the engine made meanwhile is dropped and not counted."""
    desk = Desk()
    desk.ask(1, stop=("END",))
    assert desk.step(_bytes(1, "go E")) == [Delta(1, "go ", (103, 111, 32, 69))]
    assert desk.step(_bytes(1, "NDx")) == [Delta(1, "", (78, 68))]
    assert desk.engine[-1] == Abort(1, FinishReason.STOP)
    assert desk.step(_bytes(1, "yz")) == []
    events = desk.step(ends=[_end(1, FinishReason.STOP)])
    assert events == [Finished(rid=1, reason=FinishReason.STOP, completion_tokens=6, stop_match="END")]


def test_tokens_are_reported_as_wasted_when_they_are_in_no_delta() -> None:
    """They came after a stop string, or for a sequence that nobody knows: generated is delivered plus wasted."""
    desk = Desk()
    desk.ask(1, stop=("!",))
    desk.translator.step_out(
        StepOut(rids=[1, 1, 99], token_ids=[33, 120, 120], starts=[], rejections=[], ends=[], stats=STATS)
    )
    assert desk.sent == [Events(events=[Delta(1, "", (33,))], stats=STATS, wasted_tokens=2)]


def test_tokens_are_one_delta_when_a_step_has_several() -> None:
    """As speculation gives them; the end token is the last of them, and no text."""
    desk = Desk()
    desk.ask(1)
    events = desk.step(_bytes(1, "abc!"), ends=[_end(1, FinishReason.STOP)])
    assert events == [
        Delta(1, "abc", tuple(b"abc!")),
        Finished(rid=1, reason=FinishReason.STOP, completion_tokens=4),
    ]


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_stop_string_ends_the_answer_when_the_same_step_has_tokens_behind_it(reason: FinishReason) -> None:
    """An end token, or the last one allowed: what lies behind the stop string never was."""
    desk = Desk()
    desk.ask(1, stop=("END",))
    events = desk.step(_bytes(1, "abENDcd"), ends=[_end(1, reason)])
    assert events == [
        Delta(1, "ab", tuple(b"abEND")),
        Finished(rid=1, reason=FinishReason.STOP, completion_tokens=5, stop_match="END"),
    ]


def test_held_back_text_is_shown_when_no_stop_string_came_of_it() -> None:
    """The start of a stop string at the end of an answer is part of it."""
    desk = Desk()
    desk.ask(1, stop=("END",))
    events = desk.step(_bytes(1, "EN"), ends=[_end(1, FinishReason.LENGTH)])
    assert [event.text for event in events if isinstance(event, Delta)] == ["", "EN"]


def test_reason_is_stop_when_the_last_token_allowed_completes_a_stop_string() -> None:
    """The tie between length and a stop string goes to the stop string."""
    desk = Desk()
    desk.ask(1, stop=("!",))
    events = desk.step(_bytes(1, "a!"), ends=[_end(1, FinishReason.LENGTH)])
    assert events[-1] == Finished(rid=1, reason=FinishReason.STOP, completion_tokens=2, stop_match="!")


def test_stop_string_is_ignored_when_min_tokens_are_not_reached() -> None:
    """The first tokens are shown as they are."""
    desk = Desk()
    desk.ask(1, stop=("a",), sampling=SamplingParams(min_tokens=3))
    assert desk.step(_bytes(1, "aa")) == [Delta(1, "aa", (97, 97))]
    assert desk.step(_bytes(1, "a")) == [Delta(1, "", (97,))]
    assert desk.engine[-1] == Abort(1, FinishReason.STOP)


def test_cancel_is_answered_here_when_the_prompt_is_still_being_encoded() -> None:
    """The engine has never heard of it, and will not."""
    desk = Desk(is_threaded=True)
    desk.ask(1)
    assert desk.translator.n_encoding == 1
    desk.translator.cancel(Cancel((1,), FinishReason.CANCELLED))
    assert desk.take_events() == [
        Finished(rid=1, reason=FinishReason.CANCELLED, completion_tokens=0, held=Held("encoding", 0))
    ]
    assert desk.n_dropped == 1
    desk.pending[0]()
    assert desk.engine == []
    assert (desk.translator.n_encoding, desk.translator.n_decoding) == (0, 0)


def test_others_are_submitted_when_one_choice_is_cancelled_while_encoding() -> None:
    """The request goes on with what is left of it."""
    desk = Desk(is_threaded=True)
    desk.ask(1, 2)
    assert desk.translator.n_encoding == 1
    desk.translator.cancel(Cancel((1,), FinishReason.CANCELLED))
    desk.take_events()
    assert desk.n_dropped == 0
    desk.pending[0]()
    (submit,) = desk.engine
    assert isinstance(submit, Submit)
    assert [sequence.rid for sequence in submit.sequences] == [2]


def test_cancel_is_passed_on_when_the_engine_knows_the_sequence() -> None:
    """Its end is the answer; tokens under way count for nobody after it."""
    desk = Desk()
    desk.ask(1)
    desk.translator.cancel(Cancel((1, 99), FinishReason.CANCELLED))
    assert desk.engine[1:] == [Abort(1, FinishReason.CANCELLED)]
    assert desk.take_events() == []
    held = Held("running", 3)
    assert desk.step(ends=[SequenceEnd(1, FinishReason.CANCELLED, held=held)]) == [
        Finished(rid=1, reason=FinishReason.CANCELLED, completion_tokens=0, held=held)
    ]
    assert desk.step(_bytes(1, "late"), ends=[_end(1, FinishReason.CANCELLED)]) == []


def test_a_wish_of_the_flow_is_passed_on_when_the_engine_knows_the_sequence() -> None:
    """One that is being encoded makes no tokens anyway, and one that nobody knows makes none."""
    desk = Desk(is_threaded=True)
    desk.ask(1, 2)
    desk.pending.pop()()
    desk.ask(3)
    desk.engine.clear()
    desk.translator.set_flow(SetFlow((1, 2, 3, 4), Flow.PAUSE))
    desk.translator.set_flow(SetFlow((2, 3), Flow.PARK))
    desk.translator.set_flow(SetFlow((2, 1), Flow.RUN))
    assert desk.engine == [
        SetFlow((1, 2), Flow.PAUSE),
        SetFlow((2,), Flow.PARK),
        SetFlow((2, 1), Flow.RUN),
    ]


def test_a_wish_of_the_flow_is_nothing_when_the_engine_is_gone() -> None:
    """Its sequences went with it."""
    desk = Desk()
    desk.ask(1)
    desk.is_engine_gone = True
    desk.translator.set_flow(SetFlow((1,), Flow.PAUSE))
    assert desk.take_events() == []


def test_a_sequence_is_aborted_when_nobody_here_knows_it() -> None:
    """A tokenizer process submitted the sequence; then a process died, and the step came out of the pipe after that."""
    desk = Desk()
    desk.ask(1)
    desk.translator.engine_down()
    assert desk.step(_bytes(1, "x")) == []
    assert desk.engine[1:] == [Abort(1, FinishReason.DISCONNECTED)]
    assert desk.step(ends=[_end(1, FinishReason.CANCELLED)]) == []


def test_request_is_rejected_whole_when_the_engine_refuses_it() -> None:
    """The reason passes through, and nothing is kept."""
    desk = Desk()
    desk.ask(1, 2)
    refusal = Refusal(status=503, code="overloaded", message="full")
    assert desk.step(rejections=[Rejected((1, 2), refusal)]) == [Rejected((1, 2), refusal)]
    assert desk.translator.n_decoding == 0


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [(invalid("no such role", "messages"), 400, "invalid_value"), (RuntimeError("secret"), 500, "tokenizer_fault")],
)
def test_request_is_rejected_when_its_prompt_cannot_be_encoded(
    raised: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of the template passes through; anything else is a fault without details."""

    def fail(self: ByteTokenizer, text: str) -> list[int]:
        raise raised

    monkeypatch.setattr(ByteTokenizer, "encode", fail)
    desk = Desk()
    desk.ask(1)
    (event,) = desk.take_events()
    assert isinstance(event, Rejected)
    assert (event.refusal.status, event.refusal.code) == (status, code)
    assert "secret" not in event.refusal.message
    assert (desk.translator.n_encoding, desk.translator.n_decoding) == (0, 0)


def test_request_is_rejected_when_the_engine_is_not_running() -> None:
    """503 at once, and nothing is kept."""
    desk = Desk()
    desk.is_engine_gone = True
    desk.ask(1, 2)
    assert desk.take_events() == [Rejected((1, 2), unavailable("engine"))]
    desk.translator.audit(AuditQuery(1))
    assert desk.sent == []


def test_nothing_is_kept_when_the_engine_died() -> None:
    """Neither decode states nor encodings; the API process has ended the streams itself."""
    desk = Desk(is_threaded=True)
    desk.ask(1)
    desk.ask(2)
    desk.pending.pop(0)()
    desk.is_engine_gone = True
    desk.translator.cancel(Cancel((1,), FinishReason.CANCELLED))
    desk.translator.engine_down()
    assert (desk.translator.n_encoding, desk.translator.n_decoding, desk.n_dropped) == (0, 0, 1)
    desk.pending.pop(0)()
    assert desk.take_events() == []


def test_everything_is_cancelled_when_the_api_died() -> None:
    """Nobody reads any more, so nothing should run."""
    desk = Desk(is_threaded=True)
    desk.ask(1)
    desk.ask(2)
    desk.pending.pop(0)()
    desk.translator.api_down()
    assert desk.engine[1:] == [Abort(1, FinishReason.DISCONNECTED)]
    assert desk.translator.n_encoding == 0


def test_lost_sequences_are_dropped_without_a_word() -> None:
    """The engine is told in case that it has one; an end that comes after all is nobody's."""
    desk = Desk()
    desk.ask(1)
    desk.translator.forget(Forget((1, 99)))
    assert desk.engine[1:] == [Abort(1, FinishReason.ERROR)]
    assert desk.translator.n_decoding == 0 and desk.take_events() == []
    assert desk.step(ends=[_end(1, FinishReason.ERROR)]) == []


def test_audit_is_answered_with_both_tables_when_asked() -> None:
    """The question goes to the engine; its answer is completed with this process' counts."""
    desk = Desk(is_threaded=True)
    desk.ask(1)
    desk.ask(2)
    desk.pending.pop(0)()
    desk.translator.audit(AuditQuery(5))
    assert desk.engine[-1] == AuditEngine(5)
    desk.translator.engine_audit(EngineAudit(query_id=5, stats=STATS, live=(), violations=("I2",)))
    assert desk.sent == [
        AuditReport(
            query_id=5,
            engine=STATS,
            live=(),
            violations=("I2",),
            tokenizer_encoding=1,
            tokenizer_decoding=1,
            encoding=(2,),
        )
    ]


def test_vocabulary_is_the_tokenizers() -> None:
    """For the log of the process."""
    assert Desk().translator.vocab_size == ByteTokenizer().vocab_size


def test_logprobs_go_with_the_tokens_of_those_who_want_them() -> None:
    """At once, though the text is held back; and with the token that ends it."""
    desk = Desk()
    desk.ask(1, 2, stop=("END",), sampling=msgspec.structs.replace(GREEDY, logprobs=1))
    logprobs = [Logprobs(-float(place), (65,), (-0.5,)) for place in range(4)]
    first, second = desk.step([(1, 97), (2, 98), (1, 69)], logprobs={0: logprobs[0], 2: logprobs[2]})
    assert isinstance(first, Delta) and isinstance(second, Delta)
    assert first.text == "a" and [(one.token.shown, one.token.logprob) for one in first.logprobs] == [
        ("a", 0),
        ("E", -2),
    ]
    assert second == Delta(2, "b", (98,))
    ends = [SequenceEnd(1, FinishReason.STOP)]
    last, tail, _ = desk.step([(1, EOS_ID)], ends=ends, logprobs={0: logprobs[3]})
    assert isinstance(last, Delta) and [(one.token.shown, one.text_end) for one in last.logprobs] == [("<eos>", None)]
    assert tail == Delta(1, "E", ())


def test_progress_is_passed_on_when_a_request_is_watched() -> None:
    """After what has begun, before what was said: the engine is told who asks, the client how far it is."""
    desk = Desk()
    desk.translator.tokenize(Tokenize(rids=(1,), prompts=(TextPrompt("hi"),), sampling=GREEDY, is_watched=True))
    (submit,) = desk.engine
    assert isinstance(submit, Submit) and submit.is_watched
    progress = Progress(0, 2, 2)
    desk.translator.step_out(
        StepOut(
            rids=[1],
            token_ids=[72],
            starts=[Accepted(1, 2, 0)],
            rejections=[],
            ends=[],
            stats=STATS,
            progress=[Progressed(1, progress)],
        )
    )
    assert desk.take_events() == [Accepted(1, 2, 0), Progressed(1, progress), Delta(1, "H", (72,))]


class Panic(BaseException):
    """What the library raises when its Rust code panics is no `Exception`."""


class BrittleDetokenizer(Detokenizer):
    """Breaks over an exclamation mark, and at the end of a text that has a question mark."""

    __slots__ = ("_asks",)

    def push(self, token_id: int) -> str:
        if token_id == ord("!"):
            raise RuntimeError("secret")
        self._asks = token_id == ord("?")
        return super().push(token_id)

    def flush(self) -> str:
        if self._asks:
            raise RuntimeError("secret")
        return super().flush()


class BrittleTokenizer(ByteTokenizer):
    """Encodes as it should, unless the text is a panic, and decodes as `BrittleDetokenizer` does."""

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        if text == "panic":
            raise Panic("secret")
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        if continues and self.is_out_of_detokenizers:
            raise RuntimeError("secret")
        return BrittleDetokenizer(TokenBytes([bytes([byte]) for byte in range(256)]), continues=continues)

    is_out_of_detokenizers = False


def broken(rid: int, *, n_tokens: int, held: Held | None = None) -> Finished:
    """The end of a sequence whose tokens could not be turned into text."""
    refusal = Refusal(status=500, code="tokenizer_fault", message="The tokens could not be turned into text.")
    return Finished(rid=rid, reason=FinishReason.ERROR, completion_tokens=n_tokens, held=held, refusal=refusal)


def test_a_panic_of_the_library_costs_one_request() -> None:
    """Others are encoded and decoded as before."""
    desk = Desk(tokenizer=BrittleTokenizer())
    desk.ask(1)
    desk.ask(2, prompt=TextPrompt("panic"))
    (event,) = desk.take_events()
    assert isinstance(event, Rejected) and (event.rids, event.refusal.code) == ((2,), "tokenizer_fault")
    assert desk.step(_bytes(1, "ok")) == [Delta(1, "ok", tuple(b"ok"))]
    assert (desk.translator.n_encoding, desk.translator.n_decoding) == (0, 1)


def test_a_request_is_refused_before_the_engine_hears_of_it_when_it_cannot_be_decoded() -> None:
    """A stop string that is empty, a decode state that cannot be made, or a message that contradicts itself."""
    desk = Desk(tokenizer=BrittleTokenizer())
    desk.ask(1, stop=("",))
    (event,) = desk.take_events()
    assert isinstance(event, Rejected) and (event.refusal.status, event.refusal.param) == (400, "stop")
    BrittleTokenizer.is_out_of_detokenizers = True
    try:
        desk.ask(2)
    finally:
        BrittleTokenizer.is_out_of_detokenizers = False
    desk.translator.tokenize(Tokenize(rids=(3,), prompts=(), sampling=GREEDY))
    desk.translator.tokenize(Tokenize(rids=(4, 5, 6), prompts=(TextPrompt("a"), TextPrompt("b")), sampling=GREEDY))
    events = desk.take_events()
    assert [(e.rids, e.refusal.code) for e in events if isinstance(e, Rejected)] == [
        ((2,), "tokenizer_fault"),
        ((3,), "tokenizer_fault"),
        ((4, 5, 6), "tokenizer_fault"),
    ]
    assert desk.engine == [] and (desk.translator.n_encoding, desk.translator.n_decoding) == (0, 0)


def test_an_interrupt_is_no_fault_of_a_request() -> None:
    """It passes."""

    class InterruptedTokenizer(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
            raise KeyboardInterrupt

    desk = Desk(tokenizer=InterruptedTokenizer())
    with pytest.raises(KeyboardInterrupt):
        desk.ask(1)


def test_a_sequence_whose_tokens_cannot_be_decoded_ends_with_an_error() -> None:
    """The engine is told, its end is the answer, and the streams beside it get their text."""
    desk = Desk(tokenizer=BrittleTokenizer())
    desk.ask(1, 2)
    desk.engine.clear()
    assert desk.step([*_bytes(1, "a!b"), *_bytes(2, "ok")]) == [Delta(2, "ok", tuple(b"ok"))]
    assert desk.engine == [Abort(1, FinishReason.ERROR)]
    assert desk.step(_bytes(1, "c")) == []
    held = Held("running", 2)
    ends = [SequenceEnd(1, FinishReason.ERROR, held=held), _end(2, FinishReason.LENGTH)]
    assert desk.step(ends=ends) == [
        broken(1, n_tokens=2, held=held),
        Finished(rid=2, reason=FinishReason.LENGTH, completion_tokens=2),
    ]
    assert desk.translator.n_decoding == 0


def test_a_sequence_whose_text_cannot_be_ended_ends_with_an_error() -> None:
    """Whatever the engine says of its end."""
    desk = Desk(tokenizer=BrittleTokenizer())
    desk.ask(1)
    assert desk.step(_bytes(1, "a?"), ends=[_end(1, FinishReason.LENGTH)]) == [
        Delta(1, "a?", tuple(b"a?")),
        broken(1, n_tokens=2),
    ]
    assert desk.translator.n_decoding == 0


def test_every_sequence_of_a_step_ends_with_an_error_when_the_step_cannot_be_passed_on() -> None:
    """What it said of them is not known any more. Others, and refusals, are as they were."""
    desk = Desk()
    desk.ask(1, 2)
    desk.ask(3)
    desk.ask(4)
    desk.engine.clear()
    desk.unsendable = Delta
    refusal = Refusal(status=503, code="overloaded", message="full")
    events = desk.step(
        _bytes(1, "a"),
        starts=[Accepted(2, 2, 0)],
        rejections=[Rejected((4,), refusal)],
        ends=[_end(1, FinishReason.LENGTH)],
    )
    assert events == [Rejected((4,), refusal), broken(2, n_tokens=0), broken(1, n_tokens=1)]
    assert desk.engine == [Abort(2, FinishReason.ERROR), Abort(1, FinishReason.ERROR)]
    desk.unsendable = None
    assert desk.step(_bytes(3, "c"), ends=[_end(2, FinishReason.ERROR)]) == [Delta(3, "c", (99,))]
    assert desk.translator.n_decoding == 1


def test_a_step_whose_lists_do_not_match_ends_its_sequences() -> None:
    """A message that decodes may still be none that an engine sends."""
    desk = Desk()
    desk.ask(1)
    desk.engine.clear()
    desk.translator.step_out(StepOut(rids=[1], token_ids=[], starts=[], rejections=[], ends=[], stats=STATS))
    assert desk.take_events() == [broken(1, n_tokens=0)]
    assert desk.engine == [Abort(1, FinishReason.ERROR)] and desk.translator.n_decoding == 0
