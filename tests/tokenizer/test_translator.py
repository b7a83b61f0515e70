"""The translator turns text into tokens and back: each sequence gets its deltas and exactly one end."""

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


class TranslatorDriver:
    """Drives a translator: records its messages, and keeps encodings waiting until the test runs them."""

    def __init__(self, *, is_threaded: bool = False, tokenizer: ByteTokenizer | None = None) -> None:
        self.sent: list[ToApi] = []
        self.engine: list[ToEngine] = []
        self.is_engine_gone = False
        self.pending: list[Callable[[], None]] = []
        self.n_dropped = 0
        self.unsendable: type[Event] | None = None
        """Events of this type cannot be sent to the API process."""
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
        """Send the translator one step of the engine, and return the events that it sent."""
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
    """Text prompts are encoded, and token prompts stay as they are. Choices of a prompt share its tokens."""
    driver = TranslatorDriver()
    driver.translator.tokenize(
        Tokenize(
            rids=(1, 2, 3, 4),
            prompts=(TextPrompt("ab"), TokenPrompt((7, 8, 9))),
            sampling=SamplingParams(seed=10),
        )
    )
    text = tuple(ByteTokenizer().encode("ab"))
    second = SamplingParams(seed=seed_of_choice(10, 1))
    assert driver.engine == [
        Submit(
            (
                to_engine.NewSequence(rid=1, prompt_token_ids=text, sampling=SamplingParams(seed=10)),
                to_engine.NewSequence(rid=2, prompt_token_ids=text, sampling=second),
                to_engine.NewSequence(rid=3, prompt_token_ids=(7, 8, 9), sampling=SamplingParams(seed=10)),
                to_engine.NewSequence(rid=4, prompt_token_ids=(7, 8, 9), sampling=second),
            )
        )
    ]
    assert driver.translator.n_decoding == 4


def test_tokens_become_deltas_and_one_end() -> None:
    """Each delta has its token ids, and the end has their number."""
    driver = TranslatorDriver()
    driver.ask(1)
    assert driver.step(starts=[Accepted(1, 2, 0)]) == [Accepted(1, 2, 0)]
    assert driver.step(_bytes(1, "He")) == [Delta(1, "He", (72, 101))]
    events = driver.step(_bytes(1, "y"), ends=[_end(1, FinishReason.LENGTH)])
    assert events == [Delta(1, "y", (121,)), Finished(rid=1, reason=FinishReason.LENGTH, completion_tokens=3)]
    assert driver.translator.n_decoding == 0


def test_half_a_character_waits_for_its_last_byte() -> None:
    """The token counts immediately, and its text comes with the last byte."""
    driver = TranslatorDriver()
    driver.ask(1)
    first, second = "é".encode()
    assert driver.step([(1, first)]) == [Delta(1, "", (first,))]
    assert driver.step([(1, second)]) == [Delta(1, "é", (second,))]


def test_incomplete_character_at_the_end_becomes_a_replacement_character() -> None:
    """As when all tokens are decoded together."""
    driver = TranslatorDriver()
    driver.ask(1)
    first = "é".encode()[0]
    events = driver.step([(1, first)], ends=[_end(1, FinishReason.LENGTH)])
    assert events[1] == Delta(1, "�", ())
    assert isinstance(events[2], Finished)


def test_stop_token_has_no_text() -> None:
    """It counts, but is not part of the answer."""
    driver = TranslatorDriver()
    driver.ask(1)
    events = driver.step(_bytes(1, "A"))
    events += driver.step(_bytes(1, "!"), ends=[_end(1, FinishReason.STOP)])
    assert "".join(event.text for event in events if isinstance(event, Delta)) == "A"
    assert events[-1] == Finished(rid=1, reason=FinishReason.STOP, completion_tokens=2)


def test_stop_string_cuts_the_text_and_aborts_the_sequence() -> None:
    """It may span tokens. Later tokens are dropped and not counted."""
    driver = TranslatorDriver()
    driver.ask(1, stop=("END",))
    assert driver.step(_bytes(1, "go E")) == [Delta(1, "go ", (103, 111, 32, 69))]
    assert driver.step(_bytes(1, "NDx")) == [Delta(1, "", (78, 68))]
    assert driver.engine[-1] == Abort(1, FinishReason.STOP)
    assert driver.step(_bytes(1, "yz")) == []
    events = driver.step(ends=[_end(1, FinishReason.STOP)])
    assert events == [Finished(rid=1, reason=FinishReason.STOP, completion_tokens=6, stop_match="END")]


def test_tokens_without_a_delta_are_reported_as_wasted() -> None:
    """They come after a stop string or for an unknown sequence. Generated tokens are delivered or wasted."""
    driver = TranslatorDriver()
    driver.ask(1, stop=("!",))
    driver.translator.step_out(
        StepOut(rids=[1, 1, 99], token_ids=[33, 120, 120], starts=[], rejections=[], ends=[], stats=STATS)
    )
    assert driver.sent == [Events(events=[Delta(1, "", (33,))], stats=STATS, wasted_tokens=2)]


def test_tokens_of_one_step_are_one_delta() -> None:
    """With accepted drafts a step gives several. The stop token is the last, and has no text."""
    driver = TranslatorDriver()
    driver.ask(1)
    events = driver.step(_bytes(1, "abc!"), ends=[_end(1, FinishReason.STOP)])
    assert events == [
        Delta(1, "abc", tuple(b"abc!")),
        Finished(rid=1, reason=FinishReason.STOP, completion_tokens=4),
    ]


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_stop_string_ends_the_answer_before_later_tokens_of_the_step(reason: FinishReason) -> None:
    """Tokens after the stop string do not count, whatever reason the engine gives."""
    driver = TranslatorDriver()
    driver.ask(1, stop=("END",))
    events = driver.step(_bytes(1, "abENDcd"), ends=[_end(1, reason)])
    assert events == [
        Delta(1, "ab", tuple(b"abEND")),
        Finished(rid=1, reason=FinishReason.STOP, completion_tokens=5, stop_match="END"),
    ]


def test_held_back_text_is_sent_when_the_stop_string_stays_incomplete() -> None:
    driver = TranslatorDriver()
    driver.ask(1, stop=("END",))
    events = driver.step(_bytes(1, "EN"), ends=[_end(1, FinishReason.LENGTH)])
    assert [event.text for event in events if isinstance(event, Delta)] == ["", "EN"]


def test_reason_is_stop_when_the_last_token_allowed_completes_a_stop_string() -> None:
    """A stop string takes precedence over the length."""
    driver = TranslatorDriver()
    driver.ask(1, stop=("!",))
    events = driver.step(_bytes(1, "a!"), ends=[_end(1, FinishReason.LENGTH)])
    assert events[-1] == Finished(rid=1, reason=FinishReason.STOP, completion_tokens=2, stop_match="!")


def test_stop_string_is_ignored_before_min_tokens() -> None:
    """Those tokens are ordinary text."""
    driver = TranslatorDriver()
    driver.ask(1, stop=("a",), sampling=SamplingParams(min_tokens=3))
    assert driver.step(_bytes(1, "aa")) == [Delta(1, "aa", (97, 97))]
    assert driver.step(_bytes(1, "a")) == [Delta(1, "", (97,))]
    assert driver.engine[-1] == Abort(1, FinishReason.STOP)


def test_cancel_during_encoding_is_answered_by_the_translator() -> None:
    """The engine never learns of the sequence."""
    driver = TranslatorDriver(is_threaded=True)
    driver.ask(1)
    assert driver.translator.n_encoding == 1
    driver.translator.cancel(Cancel((1,), FinishReason.CANCELLED))
    assert driver.take_events() == [
        Finished(rid=1, reason=FinishReason.CANCELLED, completion_tokens=0, held=Held("encoding", 0))
    ]
    assert driver.n_dropped == 1
    driver.pending[0]()
    assert driver.engine == []
    assert (driver.translator.n_encoding, driver.translator.n_decoding) == (0, 0)


def test_other_choices_are_submitted_when_one_is_cancelled_while_encoding() -> None:
    driver = TranslatorDriver(is_threaded=True)
    driver.ask(1, 2)
    assert driver.translator.n_encoding == 1
    driver.translator.cancel(Cancel((1,), FinishReason.CANCELLED))
    driver.take_events()
    assert driver.n_dropped == 0
    driver.pending[0]()
    (submit,) = driver.engine
    assert isinstance(submit, Submit)
    assert [sequence.rid for sequence in submit.sequences] == [2]


def test_cancel_of_a_submitted_sequence_is_passed_on_to_the_engine() -> None:
    """The engine's end is the answer. Tokens that arrive later are dropped."""
    driver = TranslatorDriver()
    driver.ask(1)
    driver.translator.cancel(Cancel((1, 99), FinishReason.CANCELLED))
    assert driver.engine[1:] == [Abort(1, FinishReason.CANCELLED)]
    assert driver.take_events() == []
    held = Held("running", 3)
    assert driver.step(ends=[SequenceEnd(1, FinishReason.CANCELLED, held=held)]) == [
        Finished(rid=1, reason=FinishReason.CANCELLED, completion_tokens=0, held=held)
    ]
    assert driver.step(_bytes(1, "late"), ends=[_end(1, FinishReason.CANCELLED)]) == []


def test_set_flow_is_passed_on_for_submitted_sequences() -> None:
    """A sequence that is being encoded, or is unknown, generates no tokens anyway."""
    driver = TranslatorDriver(is_threaded=True)
    driver.ask(1, 2)
    driver.pending.pop()()
    driver.ask(3)
    driver.engine.clear()
    driver.translator.set_flow(SetFlow((1, 2, 3, 4), Flow.PAUSE))
    driver.translator.set_flow(SetFlow((2, 3), Flow.PARK))
    driver.translator.set_flow(SetFlow((2, 1), Flow.RUN))
    assert driver.engine == [
        SetFlow((1, 2), Flow.PAUSE),
        SetFlow((2,), Flow.PARK),
        SetFlow((2, 1), Flow.RUN),
    ]


def test_set_flow_does_nothing_when_the_engine_is_gone() -> None:
    """Its sequences died with it."""
    driver = TranslatorDriver()
    driver.ask(1)
    driver.is_engine_gone = True
    driver.translator.set_flow(SetFlow((1,), Flow.PAUSE))
    assert driver.take_events() == []


def test_unknown_sequence_of_the_engine_is_aborted() -> None:
    """It was submitted before a process died, and its step came out of the pipe after that."""
    driver = TranslatorDriver()
    driver.ask(1)
    driver.translator.engine_down()
    assert driver.step(_bytes(1, "x")) == []
    assert driver.engine[1:] == [Abort(1, FinishReason.DISCONNECTED)]
    assert driver.step(ends=[_end(1, FinishReason.CANCELLED)]) == []


def test_rejection_of_the_engine_is_passed_on() -> None:
    """It covers the whole request, and nothing is kept."""
    driver = TranslatorDriver()
    driver.ask(1, 2)
    refusal = Refusal(status=503, code="overloaded", message="full")
    assert driver.step(rejections=[Rejected((1, 2), refusal)]) == [Rejected((1, 2), refusal)]
    assert driver.translator.n_decoding == 0


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [(invalid("no such role", "messages"), 400, "invalid_value"), (RuntimeError("secret"), 500, "tokenizer_fault")],
)
def test_request_is_rejected_when_its_prompt_cannot_be_encoded(
    raised: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal of the template is passed on. Any other error is a fault without details."""

    def fail(self: ByteTokenizer, text: str) -> list[int]:
        raise raised

    monkeypatch.setattr(ByteTokenizer, "encode", fail)
    driver = TranslatorDriver()
    driver.ask(1)
    (event,) = driver.take_events()
    assert isinstance(event, Rejected)
    assert (event.refusal.status, event.refusal.code) == (status, code)
    assert "secret" not in event.refusal.message
    assert (driver.translator.n_encoding, driver.translator.n_decoding) == (0, 0)


def test_request_is_rejected_when_the_engine_is_not_running() -> None:
    """Immediately with 503, and nothing is kept."""
    driver = TranslatorDriver()
    driver.is_engine_gone = True
    driver.ask(1, 2)
    assert driver.take_events() == [Rejected((1, 2), unavailable("engine"))]
    driver.translator.audit(AuditQuery(1))
    assert driver.sent == []


def test_nothing_is_kept_when_the_engine_dies() -> None:
    """Neither decoding states nor encodings. The API process ends the streams itself."""
    driver = TranslatorDriver(is_threaded=True)
    driver.ask(1)
    driver.ask(2)
    driver.pending.pop(0)()
    driver.is_engine_gone = True
    driver.translator.cancel(Cancel((1,), FinishReason.CANCELLED))
    driver.translator.engine_down()
    assert (driver.translator.n_encoding, driver.translator.n_decoding, driver.n_dropped) == (0, 0, 1)
    driver.pending.pop(0)()
    assert driver.take_events() == []


def test_all_sequences_are_aborted_when_the_api_process_dies() -> None:
    """No client can read them any more."""
    driver = TranslatorDriver(is_threaded=True)
    driver.ask(1)
    driver.ask(2)
    driver.pending.pop(0)()
    driver.translator.api_down()
    assert driver.engine[1:] == [Abort(1, FinishReason.DISCONNECTED)]
    assert driver.translator.n_encoding == 0


def test_forgotten_sequences_are_dropped_without_an_answer() -> None:
    """The engine is asked to abort them, in case it has them. A late end is ignored."""
    driver = TranslatorDriver()
    driver.ask(1)
    driver.translator.forget(Forget((1, 99)))
    assert driver.engine[1:] == [Abort(1, FinishReason.ERROR)]
    assert driver.translator.n_decoding == 0 and driver.take_events() == []
    assert driver.step(ends=[_end(1, FinishReason.ERROR)]) == []


def test_audit_has_the_tables_of_engine_and_tokenizer() -> None:
    """The query goes to the engine. The translator adds its own counts to the answer."""
    driver = TranslatorDriver(is_threaded=True)
    driver.ask(1)
    driver.ask(2)
    driver.pending.pop(0)()
    driver.translator.audit(AuditQuery(5))
    assert driver.engine[-1] == AuditEngine(5)
    driver.translator.engine_audit(EngineAudit(query_id=5, stats=STATS, live=(), violations=("I2",)))
    assert driver.sent == [
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


def test_vocabulary_size_is_that_of_the_tokenizer() -> None:
    assert TranslatorDriver().translator.vocab_size == ByteTokenizer().vocab_size


def test_logprobs_go_with_the_tokens_of_sequences_that_asked_for_them() -> None:
    """Immediately, even if the text is held back, and also with the token that ends the sequence."""
    driver = TranslatorDriver()
    driver.ask(1, 2, stop=("END",), sampling=msgspec.structs.replace(GREEDY, logprobs=1))
    logprobs = [Logprobs(-float(place), (65,), (-0.5,)) for place in range(4)]
    first, second = driver.step([(1, 97), (2, 98), (1, 69)], logprobs={0: logprobs[0], 2: logprobs[2]})
    assert isinstance(first, Delta) and isinstance(second, Delta)
    assert first.text == "a" and [(one.token.shown, one.token.logprob) for one in first.logprobs] == [
        ("a", 0),
        ("E", -2),
    ]
    assert second == Delta(2, "b", (98,))
    ends = [SequenceEnd(1, FinishReason.STOP)]
    last, tail, _ = driver.step([(1, EOS_ID)], ends=ends, logprobs={0: logprobs[3]})
    assert isinstance(last, Delta) and [(one.token.shown, one.text_end) for one in last.logprobs] == [("<eos>", None)]
    assert tail == Delta(1, "E", ())


def test_progress_of_a_watched_request_is_passed_on() -> None:
    """After starts and before deltas."""
    driver = TranslatorDriver()
    driver.translator.tokenize(Tokenize(rids=(1,), prompts=(TextPrompt("hi"),), sampling=GREEDY, is_watched=True))
    (submit,) = driver.engine
    assert isinstance(submit, Submit) and submit.is_watched
    progress = Progress(0, 2, 2)
    driver.translator.step_out(
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
    assert driver.take_events() == [Accepted(1, 2, 0), Progressed(1, progress), Delta(1, "H", (72,))]


class Panic(BaseException):
    """Raised by the library when its Rust code panics: it is not an `Exception`."""


class BrittleDetokenizer(Detokenizer):
    """Fails at an exclamation mark, and at the end of a text whose last token is a question mark."""

    __slots__ = ("_is_question",)

    def push(self, token_id: int) -> str:
        if token_id == ord("!"):
            raise RuntimeError("secret")
        self._is_question = token_id == ord("?")
        return super().push(token_id)

    def flush(self) -> str:
        if self._is_question:
            raise RuntimeError("secret")
        return super().flush()


class BrittleTokenizer(ByteTokenizer):
    """Encodes any text but `panic`, and decodes with `BrittleDetokenizer`."""

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
    """Return the end of a sequence whose tokens could not be turned into text."""
    refusal = Refusal(status=500, code="tokenizer_fault", message="The tokens could not be turned into text.")
    return Finished(rid=rid, reason=FinishReason.ERROR, completion_tokens=n_tokens, held=held, refusal=refusal)


def test_panic_of_the_library_fails_only_its_own_request() -> None:
    driver = TranslatorDriver(tokenizer=BrittleTokenizer())
    driver.ask(1)
    driver.ask(2, prompt=TextPrompt("panic"))
    (event,) = driver.take_events()
    assert isinstance(event, Rejected) and (event.rids, event.refusal.code) == ((2,), "tokenizer_fault")
    assert driver.step(_bytes(1, "ok")) == [Delta(1, "ok", tuple(b"ok"))]
    assert (driver.translator.n_encoding, driver.translator.n_decoding) == (0, 1)


def test_request_that_cannot_be_decoded_is_refused_before_it_is_submitted() -> None:
    """Its stop string is empty, its decoding state cannot be made, or its message contradicts itself."""
    driver = TranslatorDriver(tokenizer=BrittleTokenizer())
    driver.ask(1, stop=("",))
    (event,) = driver.take_events()
    assert isinstance(event, Rejected) and (event.refusal.status, event.refusal.param) == (400, "stop")
    BrittleTokenizer.is_out_of_detokenizers = True
    try:
        driver.ask(2)
    finally:
        BrittleTokenizer.is_out_of_detokenizers = False
    driver.translator.tokenize(Tokenize(rids=(3,), prompts=(), sampling=GREEDY))
    driver.translator.tokenize(Tokenize(rids=(4, 5, 6), prompts=(TextPrompt("a"), TextPrompt("b")), sampling=GREEDY))
    events = driver.take_events()
    assert [(e.rids, e.refusal.code) for e in events if isinstance(e, Rejected)] == [
        ((2,), "tokenizer_fault"),
        ((3,), "tokenizer_fault"),
        ((4, 5, 6), "tokenizer_fault"),
    ]
    assert driver.engine == [] and (driver.translator.n_encoding, driver.translator.n_decoding) == (0, 0)


def test_interrupt_is_raised_and_not_turned_into_a_rejection() -> None:
    class InterruptedTokenizer(ByteTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
            raise KeyboardInterrupt

    driver = TranslatorDriver(tokenizer=InterruptedTokenizer())
    with pytest.raises(KeyboardInterrupt):
        driver.ask(1)


def test_sequence_whose_tokens_cannot_be_decoded_ends_with_an_error() -> None:
    """The engine aborts it, and its end is the answer. Other streams get their text."""
    driver = TranslatorDriver(tokenizer=BrittleTokenizer())
    driver.ask(1, 2)
    driver.engine.clear()
    assert driver.step([*_bytes(1, "a!b"), *_bytes(2, "ok")]) == [Delta(2, "ok", tuple(b"ok"))]
    assert driver.engine == [Abort(1, FinishReason.ERROR)]
    assert driver.step(_bytes(1, "c")) == []
    held = Held("running", 2)
    ends = [SequenceEnd(1, FinishReason.ERROR, held=held), _end(2, FinishReason.LENGTH)]
    assert driver.step(ends=ends) == [
        broken(1, n_tokens=2, held=held),
        Finished(rid=2, reason=FinishReason.LENGTH, completion_tokens=2),
    ]
    assert driver.translator.n_decoding == 0


def test_sequence_whose_text_cannot_be_flushed_ends_with_an_error() -> None:
    """Whatever reason the engine gives."""
    driver = TranslatorDriver(tokenizer=BrittleTokenizer())
    driver.ask(1)
    assert driver.step(_bytes(1, "a?"), ends=[_end(1, FinishReason.LENGTH)]) == [
        Delta(1, "a?", tuple(b"a?")),
        broken(1, n_tokens=2),
    ]
    assert driver.translator.n_decoding == 0


def test_sequences_of_a_step_that_cannot_be_sent_end_with_an_error() -> None:
    """Their events are lost. Other sequences and rejections are not affected."""
    driver = TranslatorDriver()
    driver.ask(1, 2)
    driver.ask(3)
    driver.ask(4)
    driver.engine.clear()
    driver.unsendable = Delta
    refusal = Refusal(status=503, code="overloaded", message="full")
    events = driver.step(
        _bytes(1, "a"),
        starts=[Accepted(2, 2, 0)],
        rejections=[Rejected((4,), refusal)],
        ends=[_end(1, FinishReason.LENGTH)],
    )
    assert events == [Rejected((4,), refusal), broken(2, n_tokens=0), broken(1, n_tokens=1)]
    assert driver.engine == [Abort(2, FinishReason.ERROR), Abort(1, FinishReason.ERROR)]
    driver.unsendable = None
    assert driver.step(_bytes(3, "c"), ends=[_end(2, FinishReason.ERROR)]) == [Delta(3, "c", (99,))]
    assert driver.translator.n_decoding == 1


def test_sequences_of_a_step_with_unequal_lists_end_with_an_error() -> None:
    """Such a message can be decoded, although no engine sends it."""
    driver = TranslatorDriver()
    driver.ask(1)
    driver.engine.clear()
    driver.translator.step_out(StepOut(rids=[1], token_ids=[], starts=[], rejections=[], ends=[], stats=STATS))
    assert driver.take_events() == [broken(1, n_tokens=0)]
    assert driver.engine == [Abort(1, FinishReason.ERROR)] and driver.translator.n_decoding == 0
