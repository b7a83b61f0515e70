"""The offline server: the engine and the tokenizer as threads of this process, without HTTP.

::

    from sluiceway.llm import LLM
    from sluiceway.store.models import pull

    with LLM(pull("smollm2-135m")) as llm:
        print(llm.chat([{"role": "user", "content": "What is a sluice?"}]).text)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, assert_never

import msgspec
import zmq

from sluiceway.config import Dtype, ModelFiles, ServeConfig
from sluiceway.errors import PeerGone, RequestError, SluicewayError, invalid
from sluiceway.messages.codec import Decoder, encode
from sluiceway.messages.to_api import Accepted, Delta, Event, Events, Finished, Progressed, Rejected, ToApi
from sluiceway.messages.to_child import Role, Stop
from sluiceway.messages.to_supervisor import Ready
from sluiceway.messages.to_tokenizer import Cancel, ChatMessage, ChatPrompt, FromApi, Prompt, TextPrompt, Tokenize
from sluiceway.procs.addresses import Addresses
from sluiceway.procs.bar import OnLoad
from sluiceway.procs.engine import EngineLoop
from sluiceway.procs.engine_setup import build_engine
from sluiceway.procs.tokenizer import run_tokenizer
from sluiceway.text.load import load_tokenizer
from sluiceway.types import FinishReason, Rid, SamplingParams, Speculation, TokenId, ToldToken
from sluiceway.wire.control import ControlServer
from sluiceway.wire.endpoint import Inlet, Outlet

_POLL_MS = 100

_REQUESTS: Decoder[Tokenize] = Decoder(Tokenize)


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer. `logprobs` has an entry for each token, if the sampling wants them."""

    text: str
    token_ids: tuple[TokenId, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[ToldToken, ...] = ()


@dataclass(slots=True)
class _Answer:
    """An answer while it grows."""

    text: list[str] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    told: list[ToldToken] = field(default_factory=list)
    prompt_tokens: int = 0
    finished: Finished | None = None

    def take(self, event: Event) -> None:
        """Raises `RequestError` where the request was refused or broke."""
        match event:
            case Accepted():
                self.prompt_tokens = event.prompt_tokens
            case Delta():
                self.text.append(event.text)
                self.token_ids += event.token_ids
                self.told += event.told
            case Finished():
                if event.refusal is not None:
                    raise RequestError(event.refusal)
                self.finished = event
            case Rejected():
                raise RequestError(event.refusal)
            case Progressed():
                pass  # of requests that are watched, which these are not
            case _:
                assert_never(event)

    def completion(self, finished: Finished) -> Completion:
        text, token_ids = "".join(self.text), tuple(self.token_ids)
        return Completion(text, token_ids, finished.reason, self.prompt_tokens, tuple(self.told))


class LLM:
    """A model in this process, batching whatever is asked at the same time. Close it, or use it in a `with`.

    Methods may be called from several threads. A request that cannot be served raises `RequestError`: also one for
    pieces of text with log-probabilities, which whole answers alone have.
    """

    def __init__(
        self,
        files: ModelFiles,
        *,
        dtype: Dtype = "auto",
        kv_cache_tokens: int = 32_768,
        max_running: int = 64,
        speculation: Speculation = "off",
        max_draft_tokens: int = 8,
        threads: int = 0,
        on_load: OnLoad | None = None,
    ) -> None:
        config = ServeConfig(
            model=files, dtype=dtype, kv_cache_tokens=kv_cache_tokens, max_running=max_running, threads=threads,
            speculation=speculation, max_draft_tokens=max_draft_tokens, max_waiting=1_000_000,
        )  # fmt: skip
        tokenizer = load_tokenizer(files)
        engine, facts = build_engine(config, on_load)
        self._context: zmq.Context[Any] = zmq.Context()
        addresses = Addresses.in_process("llm")
        self._control = ControlServer(self._context, addresses.control)
        self._outlet: Outlet[FromApi] = Outlet(self._context, addresses.api_to_tokenizer, bind=True)
        self._inlet: Inlet[ToApi] = Inlet(self._context, addresses.tokenizer_to_api, Decoder(ToApi), bind=True)
        self._mailboxes: dict[Rid, queue.SimpleQueue[Event]] = {}
        """Each is bounded by the tokens of its sequence."""
        self._rids = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False
        engine_loop = EngineLoop(self._context, addresses, engine, facts)
        self._threads = [
            _start("tokenizer", lambda: asyncio.run(run_tokenizer(self._context, addresses, tokenizer))),
            _start("engine", engine_loop.run),
        ]
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        self._reader = _start("events", self._route)

    def generate(
        self,
        prompts: str | Sequence[str],
        sampling: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
    ) -> list[Completion]:
        """Complete plain prompts, all at once; the answers are in the order of the prompts."""
        texts = [prompts] if isinstance(prompts, str) else prompts
        return self._answer_all([TextPrompt(text) for text in texts], sampling, stop)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: SamplingParams | None = None,
        *,
        stop: Sequence[str] = (),
    ) -> Completion:
        """Answer a conversation of {"role", "content"} turns."""
        return self._answer_all([_chat_prompt(messages)], sampling, stop)[0]

    def stream(
        self, prompt: str, sampling: SamplingParams | None = None, *, stop: Sequence[str] = ()
    ) -> Generator[str, None, None]:
        """The completion of a plain prompt, piece by piece. Closing the generator cancels at once."""
        return self._pieces(TextPrompt(prompt), sampling, stop)

    def stream_chat(
        self, messages: Sequence[Mapping[str, str]], sampling: SamplingParams | None = None, *, stop: Sequence[str] = ()
    ) -> Generator[str, None, None]:
        """The answer to a conversation, piece by piece. Closing the generator cancels at once."""
        return self._pieces(_chat_prompt(messages), sampling, stop)

    def close(self) -> None:
        """End the threads; idempotent. Whoever still waits gets an error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._reader.join()  # first: it reads the control socket, which only one thread may use
        self._stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # One request.

    def _answer_all(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | None, stop: Sequence[str]
    ) -> list[Completion]:
        rids: list[Rid] = []
        try:
            # One by one, so that those before a fault are known and let go.
            rids.extend(self._submit(prompt, sampling, stop) for prompt in prompts)
            return [self._wait(rid) for rid in rids]
        finally:
            self._release(rids)

    def _wait(self, rid: Rid) -> Completion:
        answer = _Answer()
        while answer.finished is None:
            answer.take(self._next_event(rid))
        return answer.completion(answer.finished)

    def _pieces(
        self, prompt: Prompt, sampling: SamplingParams | None, stop: Sequence[str]
    ) -> Generator[str, None, None]:
        if sampling is not None and sampling.logprobs is not None:
            raise invalid("Pieces of text come without log-probabilities; whole answers have them.", "logprobs")
        rid = self._submit(prompt, sampling, stop)
        try:
            answer = _Answer()
            while answer.finished is None:
                event = self._next_event(rid)
                answer.take(event)
                if isinstance(event, Delta) and event.text:
                    yield event.text
        finally:
            self._release([rid])

    def _submit(self, prompt: Prompt, sampling: SamplingParams | None, stop: Sequence[str]) -> Rid:
        with self._lock:
            if self._is_closed:
                raise SluicewayError("this LLM is closed")
            rid = next(self._rids)
            request = Tokenize(rids=(rid,), prompts=(prompt,), sampling=sampling or SamplingParams(), stop=tuple(stop))
            self._outlet.push(_checked(request))
            # Not too late: nothing is handed over without the lock.
            self._mailboxes[rid] = queue.SimpleQueue()
        return rid

    def _next_event(self, rid: Rid) -> Event:
        mailbox = self._mailboxes[rid]
        while True:
            try:
                return mailbox.get(timeout=_POLL_MS / 1000)
            except queue.Empty:
                if not all(thread.is_alive() for thread in self._threads):
                    raise SluicewayError("the engine has stopped") from None

    def _release(self, rids: Sequence[Rid]) -> None:
        """Cancel what has not ended; ids that have ended are ignored further down."""
        with self._lock:
            for rid in rids:
                self._mailboxes.pop(rid, None)
            if not self._is_closed:
                with contextlib.suppress(PeerGone):  # then nothing runs any more
                    self._outlet.push(Cancel(tuple(rids), FinishReason.CANCELLED))

    # The threads.

    def _wait_until_ready(self) -> None:
        waiting = {Role.TOKENIZER, Role.ENGINE}
        while waiting:
            self._control.socket.poll(_POLL_MS)
            waiting -= {role for role, report in self._control.drain() if isinstance(report, Ready)}
            if not all(thread.is_alive() for thread in self._threads):
                raise SluicewayError("the engine could not be started")

    def _stop(self) -> None:
        """End both loops, whatever they are doing, and let go of every socket."""
        for thread in self._threads:
            while thread.is_alive():
                # Again and again: what is sent to a loop that is not connected yet is lost.
                for role in (Role.ENGINE, Role.TOKENIZER):
                    self._control.send(role, Stop())
                thread.join(_POLL_MS / 1000)
        for end in (self._control, self._outlet, self._inlet):
            end.close()
        self._context.term()

    def _route(self) -> None:
        """Hands events to whoever waits for them, until closed."""
        while not self._is_closed:
            self._inlet.socket.poll(_POLL_MS)
            for message in self._inlet.drain():
                if isinstance(message, Events):
                    for event in message.events:
                        self._hand_over(event)
            for _ in self._control.drain():
                pass  # heartbeats: the threads are watched by `is_alive`

    def _hand_over(self, event: Event) -> None:
        with self._lock:
            for rid in event.rids if isinstance(event, Rejected) else (event.rid,):
                mailbox = self._mailboxes.get(rid)
                if mailbox is not None:
                    mailbox.put(event)


def _start(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def _checked(request: Tokenize) -> Tokenize:
    """Raises `RequestError` for a value of a wrong type, which would break the loop that reads it."""
    try:
        return _REQUESTS.decode(encode(request))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise invalid(f"The request cannot be sent: {error}.") from error


def _chat_prompt(messages: Sequence[Mapping[str, str]]) -> ChatPrompt:
    return ChatPrompt(tuple(ChatMessage(role=turn["role"], content=turn["content"]) for turn in messages))
