"""The offline server: the engine and the tokenizer as threads of this process, without HTTP.

::

    from sluiceway.llm import LLM, SamplingParams

    with LLM("smollm2-135m") as llm:
        print(llm.chat([{"role": "user", "content": "What is a sluice?"}]).text)
        for answer in llm.generate(["One, two,", "Red, green,"], SamplingParams(max_tokens=8, temperature=0.0)):
            print(answer.prompt, answer.text)
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, TypeAlias, assert_never, get_args, overload

import msgspec
import zmq

from sluiceway import types
from sluiceway.config import Dtype, ModelFiles, ModelKind, ServeConfig
from sluiceway.engine.process import EngineLoop
from sluiceway.engine.setup import build_engine
from sluiceway.errors import ConfigError, PeerGone, RequestError, SluicewayError, invalid
from sluiceway.ipc.messages.codec import Decoder
from sluiceway.ipc.messages.to_api import Accepted, Delta, Event, Events, Finished, Progressed, Rejected, ToApi
from sluiceway.ipc.messages.to_child import Role, Stop
from sluiceway.ipc.messages.to_supervisor import Ready
from sluiceway.ipc.messages.to_tokenizer import Cancel, ChatPrompt, FromApi, Prompt, TextPrompt, Tokenize, TokenPrompt
from sluiceway.ipc.pipes.addresses import Addresses
from sluiceway.ipc.pipes.control import ControlServer
from sluiceway.ipc.pipes.endpoint import Inlet, Outlet
from sluiceway.protocols.common.body import require_filled_text, require_token_ids, wrong
from sluiceway.protocols.common.fields import lower_messages
from sluiceway.protocols.common.sampling import LoweredSampling, SamplingParams, lower_sampling
from sluiceway.store.models import pull
from sluiceway.store.progress import OnLoad, counting_bar, download_bar
from sluiceway.tokenizer.process import run_tokenizer
from sluiceway.tokenizer.text.load import load_tokenizer
from sluiceway.types import FinishReason, Rid, Speculation, TokenId, TokenLogprobs

__all__ = ["LLM", "Completion", "SamplingParams"]

_POLL_MS = 100

_DEFAULT = ServeConfig(model=ModelFiles(kind=ModelKind.FAKE, path="", name=""), max_waiting=1_000_000)
"""A configuration without a model, to check the other settings first."""

PromptLike: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or one of both as vLLM writes it: `{"prompt": text}`, `{"prompt_token_ids": ids}`."""

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation of {"role", "content"} turns, as over HTTP."""

Sampling: TypeAlias = types.SamplingParams | None
Stops: TypeAlias = str | Sequence[str] | None

_PROMPT_FORMS = 'a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished answer. `logprobs` has an entry for each token, if the sampling wants them.

    `prompt` is the text that was completed; None for token ids and for a conversation. Where the sampling wants several
    answers (`n`), this is the first, and `outputs` has all of them.
    """

    text: str
    token_ids: tuple[TokenId, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt: str | None = None
    others: tuple[Completion, ...] = ()

    @property
    def outputs(self) -> tuple[Completion, ...]:
        """Every answer to the prompt: this one, then the others."""
        return (self, *self.others)


@dataclass(slots=True)
class _Answer:
    """An answer while it grows."""

    text: list[str] = field(default_factory=list)
    token_ids: list[TokenId] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_tokens: int = 0
    finished: Finished | None = None

    def take(self, event: Event) -> None:
        """Add an event. Raises `RequestError` if the request was refused or has failed."""
        match event:
            case Accepted():
                self.prompt_tokens = event.prompt_tokens
            case Delta():
                self.text.append(event.text)
                self.token_ids += event.token_ids
                self.logprobs += event.logprobs
            case Finished():
                if event.refusal is not None:
                    raise RequestError(event.refusal)
                self.finished = event
            case Rejected():
                raise RequestError(event.refusal)
            case Progressed():
                pass  # requests of an `LLM` do not ask for it
            case _:
                assert_never(event)

    def completion(self, finished: Finished, prompt: str | None) -> Completion:
        text, token_ids = "".join(self.text), tuple(self.token_ids)
        return Completion(text, token_ids, finished.reason, self.prompt_tokens, tuple(self.logprobs), prompt)


class _Thread(threading.Thread):
    """A thread that keeps the exception that ended it."""

    def __init__(self, name: str, target: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._body = target
        self.fault: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._body()
        except BaseException as fault:
            self.fault = fault


class LLM:
    """Runs a model in this process, and batches calls that come at the same time. Close it, or use it in a `with`.

    `model` is a name as on the command line (which is fetched if it is not here), the path of a directory or of a GGUF
    file, or a result of `store.models.pull`. Methods may be called from several threads. A request that cannot be
    served raises `RequestError`, which names the argument, before anything is computed. A wrong setting raises
    `ConfigError`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ModelFiles,
        *,
        dtype: Dtype = "auto",
        max_model_len: int | None = None,
        kv_cache_tokens: int = 32_768,
        max_running: int = 64,
        speculation: Speculation = "off",
        max_draft_tokens: int = 8,
        threads: int = 0,
        on_load: OnLoad | None = None,
    ) -> None:
        config = _config(
            dtype=dtype, max_model_len=max_model_len, kv_cache_tokens=kv_cache_tokens, max_running=max_running,
            speculation=speculation, max_draft_tokens=max_draft_tokens, threads=threads,
        )  # fmt: skip
        files = _files_of(model)
        tokenizer = load_tokenizer(files)
        engine, facts = build_engine(msgspec.structs.replace(config, model=files), on_load)
        self._context: zmq.Context[Any] = zmq.Context()
        addresses = Addresses.in_process("llm")
        self._control = ControlServer(self._context, addresses.control)
        self._outlet: Outlet[FromApi] = Outlet(self._context, addresses.api_to_tokenizer, bind=True)
        self._inlet: Inlet[ToApi] = Inlet(self._context, addresses.tokenizer_to_api, Decoder(ToApi), bind=True)
        self._mailboxes: dict[Rid, queue.SimpleQueue[Event]] = {}
        """The events for each sequence. Its tokens bound them."""
        self._rids = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False
        engine_loop = EngineLoop(self._context, addresses, engine, facts)
        self._loops = [
            _Thread("tokenizer", lambda: asyncio.run(run_tokenizer(self._context, addresses, tokenizer))),
            _Thread("engine", engine_loop.run),
        ]
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        self._reader = _Thread("events", self._route)

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: Sampling | Sequence[Sampling] = None,
        *,
        stop: Stops = None,
        use_tqdm: bool = False,
        sampling: Sampling = None,
    ) -> list[Completion]:
        """Complete plain prompts, all together; the answers are in the order of the prompts.

        One set of sampling parameters is for every prompt, a list has one for each. `use_tqdm` shows a bar on standard
        error. `sampling` is the older name of `sampling_params`.
        """
        found = _prompts_of(prompts)
        wants = _lower_each(sampling_params, sampling, stop, len(found))
        return self._answer_all(found, wants, use_tqdm)

    @overload
    def chat(
        self,
        messages: Messages,
        sampling_params: Sampling = None,
        *,
        stop: Stops = None,
        use_tqdm: bool = False,
        sampling: Sampling = None,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        sampling_params: Sampling | Sequence[Sampling] = None,
        *,
        stop: Stops = None,
        use_tqdm: bool = False,
        sampling: Sampling = None,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: Sampling | Sequence[Sampling] = None,
        *,
        stop: Stops = None,
        use_tqdm: bool = False,
        sampling: Sampling = None,
    ) -> Completion | list[Completion]:
        """Answer a conversation of {"role", "content"} turns, with a `Completion`; or several, with a list of them."""
        found, is_one = _chats_of(messages)
        wants = _lower_each(sampling_params, sampling, stop, len(found))
        answers = self._answer_all(found, wants, use_tqdm)
        return answers[0] if is_one else answers

    def stream(
        self, prompt: PromptLike, sampling_params: Sampling = None, *, stop: Stops = None, sampling: Sampling = None
    ) -> Generator[str, None, None]:
        """The completion of a plain prompt, piece by piece. Closing the generator cancels it."""
        return self._pieces(_prompt_of(prompt, "prompt"), _lower_streamed(sampling_params, sampling, stop))

    def stream_chat(
        self, messages: Messages, sampling_params: Sampling = None, *, stop: Stops = None, sampling: Sampling = None
    ) -> Generator[str, None, None]:
        """The answer to a conversation, piece by piece. Closing the generator cancels it."""
        return self._pieces(_chat_of(messages, "messages"), _lower_streamed(sampling_params, sampling, stop))

    def close(self) -> None:
        """End the threads. Callers that still wait get an error. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._reader.join()  # it uses the control socket, which only one thread may use
        self._stop()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # One request.

    def _answer_all(
        self, prompts: Sequence[Prompt], wants: Sequence[LoweredSampling], shows_bar: bool
    ) -> list[Completion]:
        groups: list[tuple[Rid, ...]] = []
        bar = counting_bar("answers", len(prompts)) if shows_bar else contextlib.nullcontext(lambda: None)
        try:
            # Submitted one by one, so that a fault leaves the earlier ones known, and they are cancelled.
            groups.extend(self._submit(prompt, want) for prompt, want in zip(prompts, wants, strict=True))
            answers = []
            with bar as count:
                for prompt, group in zip(prompts, groups, strict=True):
                    text = prompt.text if isinstance(prompt, TextPrompt) else None
                    first, *others = [self._wait(rid, text) for rid in group]
                    answers.append(replace(first, others=tuple(others)))
                    count()
            return answers
        finally:
            self._release([rid for group in groups for rid in group])

    def _wait(self, rid: Rid, prompt: str | None) -> Completion:
        answer = _Answer()
        while answer.finished is None:
            answer.take(self._next_event(rid))
        return answer.completion(answer.finished, prompt)

    def _pieces(self, prompt: Prompt, want: LoweredSampling) -> Generator[str, None, None]:
        (rid,) = self._submit(prompt, want)
        try:
            answer = _Answer()
            while answer.finished is None:
                event = self._next_event(rid)
                answer.take(event)
                if isinstance(event, Delta) and event.text:
                    yield event.text
        finally:
            self._release([rid])

    def _submit(self, prompt: Prompt, want: LoweredSampling) -> tuple[Rid, ...]:
        with self._lock:
            self._require_threads()
            rids = tuple(itertools.islice(self._rids, want.n))
            try:
                self._outlet.push(Tokenize(rids=rids, prompts=(prompt,), sampling=want.sampling, stop=want.stop))
            except PeerGone:  # the tokenizer has closed its end, and its thread is about to end
                self._loops[0].join()
                self._require_threads()
            # In time for the first event, since events are passed on under the same lock.
            self._mailboxes.update((rid, queue.SimpleQueue()) for rid in rids)
        return rids

    def _next_event(self, rid: Rid) -> Event:
        mailbox = self._mailboxes[rid]
        while True:
            try:
                return mailbox.get(timeout=_POLL_MS / 1000)
            except queue.Empty:
                self._require_threads()

    def _release(self, rids: Sequence[Rid]) -> None:
        """Cancel these sequences. Those that have finished are ignored."""
        with self._lock:
            for rid in rids:
                self._mailboxes.pop(rid, None)
            if not self._is_closed:
                with contextlib.suppress(PeerGone):  # then no sequence runs any more
                    self._outlet.push(Cancel(tuple(rids), FinishReason.CANCELLED))

    # The threads.

    def _require_threads(self) -> None:
        """Raise `SluicewayError` if a thread has ended, since no call would be answered."""
        if self._is_closed:
            raise SluicewayError("this LLM is closed")
        for thread in (*self._loops, self._reader):
            if not thread.is_alive():
                why = f" ({type(thread.fault).__name__}: {thread.fault})" if thread.fault else ""
                raise SluicewayError(
                    f"this LLM has stopped: its {thread.name} thread has ended{why}; close it and make a new one"
                ) from thread.fault

    def _wait_until_ready(self) -> None:
        waiting = {Role.TOKENIZER, Role.ENGINE}
        while waiting:
            self._control.socket.poll(_POLL_MS)
            waiting -= {role for role, report in self._control.drain() if isinstance(report, Ready)}
            for thread in self._loops:
                if not thread.is_alive():
                    if isinstance(thread.fault, SluicewayError):
                        raise thread.fault  # it says what is wrong with the model
                    raise SluicewayError(f"the {thread.name} could not be started") from thread.fault

    def _stop(self) -> None:
        """End both loops, whatever they are doing, and close every socket."""
        for thread in self._loops:
            while thread.is_alive():
                # Repeated, since an order to a loop that is not connected yet is lost.
                for role in (Role.ENGINE, Role.TOKENIZER):
                    self._control.send(role, Stop())
                thread.join(_POLL_MS / 1000)
        for end in (self._control, self._outlet, self._inlet):
            end.close()
        self._context.term()

    def _route(self) -> None:
        """Hands events to the calls that wait for them, until closed."""
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


# What callers give, checked and lowered before anything is sent.


def _config(dtype: str, speculation: str, max_model_len: int | None, **numbers: int) -> ServeConfig:
    """Make the configuration. Raises `ConfigError` for a wrong value or a wrong type."""
    for name, word, known in (("dtype", dtype, get_args(Dtype)), ("speculation", speculation, get_args(Speculation))):
        if word not in known:
            raise ConfigError(name, f"must be one of {', '.join(known)}, not {word!r}")
    given = numbers if max_model_len is None else {**numbers, "max_model_len": max_model_len}
    for name, number in given.items():
        if type(number) is not int:
            raise ConfigError(name, f"must be an integer, not {number!r}")
    return msgspec.structs.replace(
        _DEFAULT,
        dtype=dtype,
        speculation=speculation,
        max_step_tokens=max(_DEFAULT.max_step_tokens, numbers["max_running"]),
        **given,
    )


def _files_of(model: object) -> ModelFiles:
    if isinstance(model, ModelFiles):
        return model
    if not isinstance(model, str | os.PathLike):
        raise ConfigError("model", f"must be a name, a path or ModelFiles, not {model!r}")
    with download_bar() as show:
        return pull(os.fsdecode(model), on_progress=show)


def _prompts_of(prompts: object) -> list[Prompt]:
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Sequence) or _is_token_ids(prompts):
        return [_prompt_of(prompts, "prompts")]
    return [_prompt_of(prompt, f"prompts[{i}]") for i, prompt in enumerate(prompts)]


def _is_token_ids(prompt: Sequence[object]) -> bool:
    return len(prompt) > 0 and type(prompt[0]) is int


def _prompt_of(prompt: object, path: str) -> Prompt:
    if isinstance(prompt, str):
        return TextPrompt(require_filled_text(prompt, path))
    if isinstance(prompt, list | tuple):
        if not prompt:
            raise invalid(f"`{path}` must not be an empty list.", path)
        return TokenPrompt(require_token_ids(prompt, path))
    match dict(prompt) if isinstance(prompt, Mapping) else None:
        case {"prompt": text, **rest} if not rest:
            return TextPrompt(require_filled_text(text, f"{path}.prompt"))
        case {"prompt_token_ids": [*ids], **rest} if ids and not rest:
            return TokenPrompt(require_token_ids(ids, f"{path}.prompt_token_ids"))
    raise wrong(prompt, path, _PROMPT_FORMS)


def _chats_of(messages: object) -> tuple[list[Prompt], bool]:
    """The conversations, and whether the caller gave a single one instead of a list."""
    is_many = isinstance(messages, list | tuple) and len(messages) > 0 and isinstance(messages[0], list | tuple)
    if not is_many:
        return [_chat_of(messages, "messages")], True
    assert isinstance(messages, list | tuple)
    return [_chat_of(turns, f"messages[{i}]") for i, turns in enumerate(messages)], False


def _chat_of(messages: object, path: str) -> Prompt:
    turns = list(messages) if isinstance(messages, tuple) else messages
    if isinstance(turns, list):
        turns = [dict(turn) if isinstance(turn, Mapping) else turn for turn in turns]
    return ChatPrompt(lower_messages(turns, path))


def _lower_each(
    sampling_params: Sampling | Sequence[Sampling], sampling: Sampling, stop: Stops, n_prompts: int
) -> list[LoweredSampling]:
    """The sampling parameters for each prompt."""
    if not isinstance(sampling_params, list | tuple):
        return [lower_sampling(_given_once(sampling_params, sampling), stop)] * n_prompts
    _given_once(sampling_params, sampling)
    if len(sampling_params) != n_prompts:
        raise invalid(
            f"`sampling_params` must have an entry for each prompt, {n_prompts}, not {len(sampling_params)}.",
            "sampling_params",
        )
    return [lower_sampling(params, stop) for params in sampling_params]


def _lower_streamed(sampling_params: Sampling, sampling: Sampling, stop: Stops) -> LoweredSampling:
    want = lower_sampling(_given_once(sampling_params, sampling), stop)
    if want.sampling.logprobs is not None:
        raise invalid("Pieces of text come without logprobs; whole answers have them.", "logprobs")
    if want.n > 1:
        raise invalid("Pieces of text are those of one answer, so `n` must be 1.", "n")
    return want


def _given_once(sampling_params: Any, sampling: Sampling) -> Any:
    if sampling is None:
        return sampling_params
    if sampling_params is not None:
        raise invalid("`sampling` is another name of `sampling_params`; give one of them.", "sampling")
    return sampling
