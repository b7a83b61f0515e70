"""`sluiceway chat`: talk with a model, in this process or on a server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Container, Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluiceway.cli.exits import FAILED, command
from sluiceway.cli.options import (
    DEFAULT,
    URL_MODEL_VARIABLE,
    DtypeOption,
    KvCacheTokens,
    ModelSource,
    Stop,
    Threads,
    model_at_url,
    option,
    sampling_flags,
    sampling_of,
    typed_flags,
    with_parameters,
)
from sluiceway.errors import ConfigError
from sluiceway.store.catalog import DEFAULT_MODEL, Source

if TYPE_CHECKING:
    from sluiceway.cli.answers import Answers, Messages
    from sluiceway.llm import LLM
    from sluiceway.protocols.common.sampling import SamplingParams

ChatModel = Annotated[
    str | None,
    typer.Argument(
        help="As for serve (default: smollm2-135m). With --url, the server's name for it (default: its first), "
        f"which is set by {URL_MODEL_VARIABLE}.",
        envvar="SLUICEWAY_MODEL",
    ),
]
Url = Annotated[str | None, option("--url", "A server that speaks the OpenAI protocol; without it, no server is used.")]
ApiKey = Annotated[str | None, option("--api-key", "Sent to --url as a bearer token.")]
System = Annotated[str | None, option("--system", "The system prompt, the first message of the chat.")]


@command
def chat(
    context: typer.Context,
    model: ChatModel = None,
    url: Url = None,
    api_key: ApiKey = None,
    system: System = None,
    stop: Stop = None,
    dtype: DtypeOption = DEFAULT.dtype,
    kv_cache_tokens: KvCacheTokens = DEFAULT.kv_cache_tokens,
    threads: Threads = DEFAULT.threads,
    source: ModelSource = Source.AUTO,
    **parameters: Any,
) -> None:
    """Talk with a model. Lines that are pasted together are one question; lines that are piped in are one each."""
    parameters = {name: value for name, value in {**parameters, "stop": stop or None}.items() if value is not None}
    refuse_idle_flags(typed_flags(context), is_remote=url is not None)
    if url is not None:
        opened = remote(url, model_at_url(context, model), api_key, parameters)
    else:
        opened = local(model, source, parameters, dtype=dtype, kv_cache_tokens=kv_cache_tokens, threads=threads)
    with opened as answers:
        failures = converse(answers, system)
    if failures and not sys.stdin.isatty():
        raise typer.Exit(FAILED)


with_parameters(chat, sampling_flags(temperature=0.7, top_p=1.0), after="system")


def refuse_idle_flags(typed: Container[str], *, is_remote: bool) -> None:
    """Raise `ConfigError` for a flag on the command line that has no effect."""
    for field in ("dtype", "kv_cache_tokens", "threads", "source") if is_remote else ("api_key",):
        if field in typed:
            why = "has no effect with --url: that server runs already" if is_remote else "has no effect without --url"
            raise ConfigError(field, why)


@contextlib.contextmanager
def remote(url: str, model: str | None, api_key: str | None, parameters: dict[str, Any]) -> Iterator[Answers]:
    from sluiceway.cli.answers import RemoteAnswers

    answers = RemoteAnswers(url, model=model, api_key=api_key, parameters=parameters)
    with contextlib.closing(answers):
        typer.echo(f"{answers.model} at {url}", err=True)
        yield answers


@contextlib.contextmanager
def local(model: str | None, source: Source, parameters: dict[str, Any], **engine: Any) -> Iterator[Answers]:
    from sluiceway.cli.pull import fetch, load

    sampling = sampling_of(parameters)
    files = fetch(model or DEFAULT_MODEL, source)
    typer.echo(f"loading {files.name}", err=True)

    with load(files, **engine) as llm:
        yield LocalAnswers(llm, sampling)


class LocalAnswers:
    """Gets answers from an `LLM` of this process."""

    def __init__(self, llm: LLM, sampling: SamplingParams) -> None:
        self._llm = llm
        self._sampling = sampling

    def stream(self, messages: Messages) -> Generator[str, None, None]:
        return self._llm.stream_chat(messages, self._sampling)


def converse(answers: Answers, system: str | None) -> int:
    """Talk with a person until they leave, or the input ends. Returns the number of failed answers."""
    from sluiceway.cli.conversation import Conversation
    from sluiceway.cli.repl import Repl
    from sluiceway.cli.typed import TypedQuestions

    read: Callable[[], str] = input
    if sys.stdin.isatty():
        typer.echo("/help lists the commands", err=True)
        read = TypedQuestions().read
    repl = Repl(answers, Conversation(system), read=read, show=_show, warn=lambda text: typer.echo(text, err=True))
    repl.run()
    return repl.failures


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
