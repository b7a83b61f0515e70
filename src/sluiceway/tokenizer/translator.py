"""The tokenizer process' mind: every live sequence between its text and its tokens. Synchronous; owns no socket.

A request is first *encoding* (its prompts become tokens, elsewhere), then its sequences are *decoding*
(tokens become text) until the engine's end arrives. A cancel that comes while it is encoding is answered here, since
the engine has never heard of it; one that comes later is passed on, and the engine's end is the answer. Either way
exactly one `Finished` leaves for each sequence that was not rejected.

A stop string is found here, in text. The text is cut, the engine gets an abort, and what the engine made
meanwhile is dropped; the engine's end then becomes the `Finished`.

An exception during the work for one request ends that request and nothing else. A request that is encoding is rejected.
For a sequence that is decoding the engine gets an abort, and the sequence ends with an error once the engine ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
import structlog

from sluiceway.engine.scheduler.seeds import seed_of_choice
from sluiceway.errors import PeerGone, Refusal, RequestError
from sluiceway.ipc.messages.to_api import (
    AuditReport,
    Delta,
    Event,
    Events,
    Finished,
    Rejected,
    ToApi,
)
from sluiceway.ipc.messages.to_engine import Abort, AuditEngine, NewSequence, SetFlow, Submit, ToEngine
from sluiceway.ipc.messages.to_tokenizer import (
    AuditQuery,
    Cancel,
    ChatPrompt,
    EngineAudit,
    Forget,
    Prompt,
    SequenceEnd,
    StepOut,
    Tokenize,
)
from sluiceway.obs.log import log_fault
from sluiceway.refusals import unavailable
from sluiceway.tokenizer.prompts import Encoded
from sluiceway.tokenizer.text.sequence_text import SequenceText
from sluiceway.tokenizer.text.stops import StopMatcher
from sluiceway.tokenizer.text.tokenizer import Tokenizer
from sluiceway.types import FinishReason, Held, Rid, SamplingParams, TokenId

_ENCODING = Held("encoding", 0)
"""What a sequence holds that the engine has never heard of."""

_ENCODING_FAULT = Refusal(status=500, code="tokenizer_fault", message="The prompt could not be encoded.")
_DECODING_FAULT = Refusal(status=500, code="tokenizer_fault", message="The tokens could not be turned into text.")


class Encode(Protocol):
    """Encodes prompts. Calls `done` once with the outcome, in the process' own loop; what it returns drops the work."""

    def __call__(self, prompts: Sequence[Prompt], done: Callable[[Encoded], None]) -> Callable[[], object]: ...


@dataclass(slots=True)
class _Encoding:
    """A request whose prompts are being encoded; `live` are its ids that were not cancelled meanwhile."""

    request: Tokenize
    live: set[Rid]
    drop: Callable[[], object] = field(default=lambda: None)
    """Cancels the encoding."""


class Translator:
    """See the module's docstring."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        to_api: Callable[[ToApi], None],
        to_engine: Callable[[ToEngine], None],
        encode: Encode,
    ) -> None:
        self._tokenizer = tokenizer
        self._to_api = to_api
        self._to_engine = to_engine
        self._encode = encode
        self._log = structlog.get_logger("tokenizer")
        self._encoding: dict[Rid, _Encoding] = {}
        self._decoding: dict[Rid, SequenceText] = {}
        self._broken: set[Rid] = set()
        """Those of them whose tokens could not be turned into text, until the engine has ended them."""

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def n_encoding(self) -> int:
        """Requests whose prompts are being encoded."""
        return len({id(job) for job in self._encoding.values()})

    @property
    def n_decoding(self) -> int:
        """Sequences with decode state."""
        return len(self._decoding)

    # From the API process.

    def tokenize(self, request: Tokenize) -> None:
        """Encode the prompts and submit them, or reject the request."""
        job = _Encoding(request, set(request.rids))
        self._encoding.update(dict.fromkeys(request.rids, job))
        job.drop = self._encode(request.prompts, partial(self._encoded, job))

    def cancel(self, message: Cancel) -> None:
        """End these sequences, wherever they are; unknown ids are ignored."""
        ended: list[Event] = []
        for rid in message.rids:
            job = self._encoding.pop(rid, None)
            if job is not None:
                job.live.discard(rid)
                if not job.live:
                    job.drop()
                ended.append(Finished(rid=rid, reason=message.reason, completion_tokens=0, held=_ENCODING))
            elif rid in self._decoding:
                self._abort(rid, message.reason)
        if ended:
            self._to_api(Events(events=ended))

    def forget(self, message: Forget) -> None:
        """Drop these sequences without a word; if the engine should have one after all, it ends there."""
        for rid in message.rids:
            if self._decoding.pop(rid, None) is not None:
                self._broken.discard(rid)
                self._abort(rid, FinishReason.ERROR)

    def set_flow(self, message: SetFlow) -> None:
        """Pass the message on to the engine, for those of its sequences that the engine has."""
        rids = tuple(rid for rid in message.rids if rid in self._decoding)
        if rids:
            self._tell_engine(SetFlow(rids, message.flow))

    def audit(self, query: AuditQuery) -> None:
        """Pass the question on; `engine_audit` answers it."""
        try:
            self._to_engine(AuditEngine(query.query_id))
        except PeerGone:
            pass  # the asker has a time limit of its own, and knows the engine's state

    # From the engine.

    def step_out(self, step: StepOut) -> None:
        """Turn the tokens of one step into text, for all sequences, in one message."""
        try:
            self._translate(step)
        except Exception as error:
            log_fault(self._log, "a step of the engine could not be passed on", error)
            self._give_up(step)

    def _translate(self, step: StepOut) -> None:
        events: list[Event] = [*step.starts, *step.rejections, *step.progress]
        stopped_by_token = {end.rid for end in step.ends if end.reason is FinishReason.STOP}
        deltas = self._deltas(step, stopped_by_token)
        events += deltas
        for end in step.ends:
            events += self._finish(end)
        n_wasted = len(step.token_ids) - sum(len(delta.token_ids) for delta in deltas)
        self._to_api(Events(events=events, stats=step.stats, wasted_tokens=n_wasted))
        for rejection in step.rejections:
            for rid in rejection.rids:
                self._forget(rid)
        for end in step.ends:
            self._forget(end.rid)

    def engine_audit(self, audit: EngineAudit) -> None:
        """Answer an audit, with this process' own tables."""
        self._to_api(
            AuditReport(
                query_id=audit.query_id,
                engine=audit.stats,
                live=audit.live,
                violations=audit.violations,
                encoding=tuple(self._encoding),
                tokenizer_encoding=self.n_encoding,
                tokenizer_decoding=self.n_decoding,
            )
        )

    # From the supervisor.

    def engine_down(self) -> None:
        """The engine died, and with it every sequence; the API process ends their streams itself."""
        for job in self._encoding.values():
            job.live.clear()
            job.drop()
        self._encoding.clear()
        self._decoding.clear()
        self._broken.clear()

    def api_down(self) -> None:
        """Cancel everything, since the API process died."""
        self.cancel(Cancel(tuple(self._encoding) + tuple(self._decoding), FinishReason.DISCONNECTED))

    # Prompts.

    def _encoded(self, job: _Encoding, outcome: Encoded) -> None:
        live = [rid for rid in job.request.rids if rid in job.live]
        for rid in live:
            del self._encoding[rid]
        if not live:
            return
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            self._submit(job.request, live, outcome)
        except PeerGone:
            self._reject(live, unavailable("engine"))
        except RequestError as error:
            self._reject(live, error.refusal)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the tokenizer library is not an Exception
            log_fault(self._log, "a request could not be encoded", error)
            self._reject(live, _ENCODING_FAULT)

    def _submit(self, request: Tokenize, live: Sequence[Rid], encoded: Sequence[Sequence[TokenId]]) -> None:
        """Raises before the engine has heard of any of these sequences, or not at all."""
        n = len(request.rids) // len(request.prompts)
        token_ids = [tuple(ids) for ids in encoded]
        sequences: list[NewSequence] = []
        texts: dict[Rid, SequenceText] = {}
        stops = StopMatcher(request.stop)
        for i, rid in enumerate(request.rids):
            if rid not in live:
                continue
            sampling = _for_choice(request.sampling, i % n)
            sequences.append(NewSequence(rid=rid, prompt_token_ids=token_ids[i // n], sampling=sampling))
            continues = not isinstance(request.prompts[i // n], ChatPrompt)
            texts[rid] = SequenceText(
                self._tokenizer.detokenizer(continues=continues), stops.for_new_text(), sampling.min_tokens
            )
        self._to_engine(Submit(tuple(sequences), request.is_watched))
        self._decoding.update(texts)

    def _reject(self, rids: Iterable[Rid], refusal: Refusal) -> None:
        self._to_api(Events(events=[Rejected(tuple(rids), refusal)]))

    # Tokens.

    def _deltas(self, step: StepOut, stopped_by_token: set[Rid]) -> list[Delta]:
        last = {rid: i for i, rid in enumerate(step.rids) if rid in stopped_by_token}
        logprobs = step.logprobs
        touched: dict[Rid, SequenceText] = {}
        for i, (rid, token_id) in enumerate(zip(step.rids, step.token_ids, strict=True)):
            text = self._decoding.get(rid)
            if text is None:
                # It was submitted before a process died, and reached the engine after that: no response waits for it.
                self._abort(rid, FinishReason.DISCONNECTED)
                continue
            if text.is_over or rid in self._broken:
                continue  # its stop string, or the fault, came before this token
            touched[rid] = text
            try:
                # The token that ended the sequence is not part of its text, special or not.
                if text.push(token_id, logprobs.get(i), is_text=last.get(rid) != i):
                    self._abort(rid, FinishReason.STOP)
            except Exception as error:
                self._break(rid, error)
        return [Delta(rid, *text.take()) for rid, text in touched.items() if rid not in self._broken]

    def _finish(self, end: SequenceEnd) -> Iterator[Event]:
        text = self._decoding.get(end.rid)
        if text is None:
            return
        reason, refusal, tail = end.reason, end.refusal, ""
        if end.rid not in self._broken:
            try:
                text.end()
                tail, _, _ = text.take()
            except Exception as error:
                self._break(end.rid, error)
        if end.rid in self._broken:
            reason, refusal = FinishReason.ERROR, refusal or _DECODING_FAULT
        elif text.is_over and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP  # the last token allowed may also complete a stop string
        if tail:
            yield Delta(end.rid, tail, ())
        yield Finished(
            rid=end.rid,
            reason=reason,
            completion_tokens=text.n_tokens,
            held=end.held,
            stop_match=text.stop_match,
            refusal=refusal,
        )

    def _break(self, rid: Rid, error: Exception) -> None:
        """No text can be made of this sequence's tokens any more. The engine's end of it is the answer."""
        log_fault(self._log, "the tokens of a sequence could not be turned into text", error, rid=rid)
        self._broken.add(rid)
        self._abort(rid, FinishReason.ERROR)

    def _give_up(self, step: StepOut) -> None:
        """End every sequence of which the step has news: what has become of it is not known any more."""
        for rejection in step.rejections:
            for rid in rejection.rids:
                self._forget(rid)
            self._reject(rejection.rids, rejection.refusal)
        rids = (*(start.rid for start in step.starts), *step.rids, *(end.rid for end in step.ends))
        for rid in dict.fromkeys(rids):
            text = self._decoding.get(rid)
            if text is not None:
                self._forget(rid)
                self._abort(rid, FinishReason.ERROR)
                finished = Finished(
                    rid=rid, reason=FinishReason.ERROR, completion_tokens=text.n_tokens, refusal=_DECODING_FAULT
                )
                self._to_api(Events(events=[finished]))

    def _forget(self, rid: Rid) -> None:
        self._decoding.pop(rid, None)
        self._broken.discard(rid)

    def _abort(self, rid: Rid, reason: FinishReason) -> None:
        self._tell_engine(Abort(rid, reason))

    def _tell_engine(self, message: ToEngine) -> None:
        try:
            self._to_engine(message)
        except PeerGone:
            pass  # the engine is dead, and its sequences with it; `engine_down` follows


def _for_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Choices of one prompt with one seed would be the same text: each further choice has a seed of its own."""
    if sampling.seed is None or choice == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=seed_of_choice(sampling.seed, choice))
