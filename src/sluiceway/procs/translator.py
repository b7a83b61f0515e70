"""The tokenizer process' mind: every live sequence between its text and its tokens. Synchronous; owns no socket.

A request is first *encoding* (its prompts become tokens, perhaps in a thread), then its sequences are *decoding*
(tokens become text) until the engine's end arrives. A cancel that comes while it is encoding is answered here, since
the engine has never heard of it; one that comes later is passed on, and the engine's end is the answer. Either way
exactly one `Finished` leaves for each sequence that was not rejected.

A stop string is found here, in text. The text is cut, the engine is told to end the sequence, and what the engine made
meanwhile is dropped; the engine's end then becomes the `Finished`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import msgspec

from sluiceway.core.seeds import seed_of_choice
from sluiceway.errors import PeerGone, Refusal, RequestError
from sluiceway.messages import to_engine
from sluiceway.messages.to_api import Accepted, AuditReport, Delta, Event, Events, Finished, Progressed, Rejected, ToApi
from sluiceway.messages.to_engine import Abort, AuditEngine, Sequence, Submit, ToEngine
from sluiceway.messages.to_tokenizer import (
    AuditQuery,
    Cancel,
    ChatPrompt,
    EngineAudit,
    Park,
    Pause,
    Prompt,
    Resume,
    SequenceEnd,
    StepOut,
    TextPrompt,
    Tokenize,
    TokenPrompt,
)
from sluiceway.refusals import prompt_too_long, unavailable
from sluiceway.text.sequence_text import SequenceText
from sluiceway.text.stops import StopMatcher
from sluiceway.text.tokenizer import Tokenizer
from sluiceway.types import FinishReason, Held, Rid, SamplingParams, TokenId

Encoded = list[list[TokenId]] | BaseException
"""The tokens of each prompt, or what encoding raised."""

_ENGINE_WISHES: Mapping[type[Pause | Park | Resume], Callable[[Rid], ToEngine]] = MappingProxyType(
    {Pause: to_engine.Pause, Park: to_engine.Park, Resume: to_engine.Resume}
)

_ENCODING = Held("encoding", 0)
"""What a sequence holds that the engine has never heard of."""

_TOKENIZER_FAULT = Refusal(status=500, code="tokenizer_fault", message="The prompt could not be encoded.")


class EncodeLater(Protocol):
    """Runs `encode` and calls `done` with its outcome, at once or later, always in the process' own loop."""

    def __call__(
        self, n_chars: int, encode: Callable[[], list[list[TokenId]]], done: Callable[[Encoded], None]
    ) -> None: ...


@dataclass(slots=True)
class _Encoding:
    """A request whose prompts are being encoded; `live` are its ids that were not cancelled meanwhile."""

    request: Tokenize
    live: set[Rid]


class Translator:
    """See the module's docstring. `max_sequence_tokens` is set when the engine has said it."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        to_api: Callable[[ToApi], None],
        to_engine: Callable[[ToEngine], None],
        encode_later: EncodeLater,
    ) -> None:
        self._tokenizer = tokenizer
        self._to_api = to_api
        self._to_engine = to_engine
        self._encode_later = encode_later
        self._encoding: dict[Rid, _Encoding] = {}
        self._decoding: dict[Rid, SequenceText] = {}
        self.max_sequence_tokens: int | None = None

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
        refusal = self._hopeless(request.prompts)
        if refusal is not None:
            self._reject(request.rids, refusal)
            return
        job = _Encoding(request, set(request.rids))
        self._encoding.update(dict.fromkeys(request.rids, job))
        n_chars = sum(len(_text_of(prompt)) for prompt in request.prompts)
        self._encode_later(
            n_chars,
            lambda: [self._encode(prompt) for prompt in request.prompts],
            lambda outcome: self._encoded(job, outcome),
        )

    def cancel(self, message: Cancel) -> None:
        """End these sequences, wherever they are; unknown ids are ignored."""
        ended: list[Event] = []
        for rid in message.rids:
            job = self._encoding.pop(rid, None)
            if job is not None:
                job.live.discard(rid)
                ended.append(Finished(rid=rid, reason=message.reason, completion_tokens=0, held=_ENCODING))
            elif rid in self._decoding:
                self._abort(rid, message.reason)
        if ended:
            self._to_api(Events(events=ended))

    def hold(self, message: Pause | Park | Resume) -> None:
        """Pass a wish of the flow of tokens on, for each sequence that the engine has."""
        wish = _ENGINE_WISHES[type(message)]
        for rid in message.rids:
            if rid in self._decoding:
                self._tell_engine(wish(rid))

    def audit(self, query: AuditQuery) -> None:
        """Pass the question on; `engine_audit` answers it."""
        try:
            self._to_engine(AuditEngine(query.query_id))
        except PeerGone:
            pass  # the asker has a time limit of its own, and knows the engine's state

    # From the engine.

    def step_out(self, step: StepOut) -> None:
        """Turn the tokens of one step into text, for all sequences, in one message."""
        events: list[Event] = [Accepted(start.rid, start.prompt_tokens, start.cached_tokens) for start in step.starts]
        for rejection in step.rejections:
            for rid in rejection.rids:
                self._decoding.pop(rid, None)
            events.append(Rejected(rejection.rids, rejection.refusal))
        events += [Progressed(rid, progress) for rid, progress in step.progress]
        stopped_by_token = {end.rid for end in step.ends if end.reason is FinishReason.STOP}
        deltas = self._deltas(step, stopped_by_token)
        events += deltas
        for end in step.ends:
            events += self._finish(end)
        n_wasted = len(step.token_ids) - sum(len(delta.token_ids) for delta in deltas)
        self._to_api(Events(events=events, stats=step.stats, wasted_tokens=n_wasted))

    def engine_audit(self, audit: EngineAudit) -> None:
        """Answer an audit, with this process' own tables."""
        self._to_api(
            AuditReport(
                query_id=audit.query_id,
                engine=audit.stats,
                live=audit.live,
                violations=audit.violations,
                tokenizer_encoding=self.n_encoding,
                tokenizer_decoding=self.n_decoding,
            )
        )

    # From the supervisor.

    def engine_down(self) -> None:
        """The engine died, and with it every sequence; the API process ends their streams itself."""
        for job in self._encoding.values():
            job.live.clear()
        self._encoding.clear()
        self._decoding.clear()

    def api_down(self) -> None:
        """The API process died: nobody reads any more."""
        self.cancel(Cancel(tuple(self._encoding) + tuple(self._decoding), FinishReason.DISCONNECTED))

    # Prompts.

    def _hopeless(self, prompts: Iterable[Prompt]) -> Refusal | None:
        """A refusal for a prompt so long that it cannot fit, found without encoding it.

        Token ids too: the engine's loop would stand still for all while it reads a million of them.
        """
        if self.max_sequence_tokens is None:
            return None
        for prompt in prompts:
            at_least = self._min_tokens_of(prompt)
            if at_least >= self.max_sequence_tokens:
                return prompt_too_long(f"at least {at_least}", self.max_sequence_tokens)
        return None

    def _min_tokens_of(self, prompt: Prompt) -> int:
        if isinstance(prompt, TokenPrompt):
            return len(prompt.token_ids)
        return self._tokenizer.min_tokens_of(_text_of(prompt))

    def _encode(self, prompt: Prompt) -> list[TokenId]:
        match prompt:
            case TextPrompt(text):
                return self._tokenizer.encode(text)
            case TokenPrompt(token_ids):
                return list(token_ids)
            case ChatPrompt(messages):
                return self._tokenizer.encode_chat([msgspec.to_builtins(message) for message in messages])

    def _encoded(self, job: _Encoding, outcome: Encoded) -> None:
        live = [rid for rid in job.request.rids if rid in job.live]
        for rid in live:
            del self._encoding[rid]
        if not live:
            return
        if isinstance(outcome, BaseException):
            self._reject(live, outcome.refusal if isinstance(outcome, RequestError) else _TOKENIZER_FAULT)
            return
        self._submit(job.request, live, outcome)

    def _submit(self, request: Tokenize, live: Iterable[Rid], token_ids: list[list[TokenId]]) -> None:
        n = len(request.rids) // len(request.prompts)
        sequences = tuple(
            Sequence(rid=rid, prompt_token_ids=tuple(token_ids[i // n]), sampling=_for_choice(request.sampling, i % n))
            for i, rid in enumerate(request.rids)
            if rid in live
        )
        try:
            self._to_engine(Submit(sequences, request.is_watched))
        except PeerGone:
            self._reject(live, unavailable("engine"))
            return
        for sequence in sequences:
            prompt = request.prompts[request.rids.index(sequence.rid) // n]
            self._decoding[sequence.rid] = SequenceText(
                self._tokenizer.detokenizer(continues=not isinstance(prompt, ChatPrompt)),
                StopMatcher(request.stop),
                request.sampling.min_tokens,
            )

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
                # It was submitted before a process died, and reached the engine after that: nobody waits for it.
                self._abort(rid, FinishReason.DISCONNECTED)
                continue
            if text.is_over:
                continue  # its stop string came before this token
            touched[rid] = text
            # The token that ended the sequence is not part of its text, special or not.
            if text.push(token_id, logprobs.get(i), is_text=last.get(rid) != i):
                self._abort(rid, FinishReason.STOP)
        return [Delta(rid, *text.take()) for rid, text in touched.items()]

    def _finish(self, end: SequenceEnd) -> Iterator[Event]:
        text = self._decoding.pop(end.rid, None)
        if text is None:
            return
        text.end()
        tail, _, _ = text.take()
        if tail:
            yield Delta(end.rid, tail, ())
        # The last token allowed may also complete a stop string.
        is_stop = text.is_over and end.reason is FinishReason.LENGTH
        yield Finished(
            rid=end.rid,
            reason=FinishReason.STOP if is_stop else end.reason,
            completion_tokens=text.n_tokens,
            held=end.held,
            stop_match=text.stop_match,
            refusal=end.refusal,
        )

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


def _text_of(prompt: Prompt) -> str:
    """The text that will certainly be encoded; the template of a chat adds more."""
    match prompt:
        case TextPrompt(text):
            return text
        case TokenPrompt():
            return ""
        case ChatPrompt(messages):
            return "".join(message.content for message in messages)
