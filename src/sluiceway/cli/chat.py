"""`sluiceway chat`: talk with a model, in this process or on a server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluiceway.cli.exits import FAILED, command
from sluiceway.cli.options import (
    DEFAULT,
    DtypeOption,
    KvCacheTokens,
    MaxTokens,
    ModelSource,
    Seed,
    Temperature,
    Threads,
    TopP,
    option,
)
from sluiceway.store.catalog import DEFAULT_MODEL, Source

if TYPE_CHECKING:
    from sluiceway.cli.answers import Answers, Messages
    from sluiceway.llm import LLM
    from sluiceway.types import SamplingParams

ChatModel = Annotated[
    str | None,
    typer.Argument(
        help="As for serve (default: smollm2-135m); with --url, the server's name for it (default: its first).",
        envvar="SLUICEWAY_MODEL",
    ),
]
Url = Annotated[str | None, option("--url", "A server that speaks the OpenAI protocol; without it, no server is used.")]
ApiKey = Annotated[str | None, option("--api-key", "Sent to --url as a bearer token.")]
System = Annotated[str | None, option("--system", "The system text, said before everything else.")]


@command
def chat(
    model: ChatModel = None,
    url: Url = None,
    api_key: ApiKey = None,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.7,
    top_p: TopP = 1.0,
    seed: Seed = None,
    dtype: DtypeOption = DEFAULT.dtype,
    kv_cache_tokens: KvCacheTokens = DEFAULT.kv_cache_tokens,
    threads: Threads = DEFAULT.threads,
    source: ModelSource = Source.AUTO,
) -> None:
    """Talk with a model. Lines can also be piped in, one question a line."""
    parameters = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
    if url:
        opened = remote(url, model, api_key, parameters)
    else:
        opened = local(model, source, parameters, dtype=dtype, kv_cache_tokens=kv_cache_tokens, threads=threads)
    with opened as answers:
        failures = converse(answers, system)
    if failures and not sys.stdin.isatty():
        raise typer.Exit(FAILED)


@contextlib.contextmanager
def remote(url: str, model: str | None, api_key: str | None, parameters: dict[str, Any]) -> Iterator[Answers]:
    from sluiceway.cli.answers import RemoteAnswers

    given = {name: value for name, value in parameters.items() if value is not None}
    answers = RemoteAnswers(url, model=model, api_key=api_key, parameters=given)
    with contextlib.closing(answers):
        typer.echo(f"{answers.model} at {url}", err=True)
        yield answers


@contextlib.contextmanager
def local(model: str | None, source: Source, parameters: dict[str, Any], **engine: Any) -> Iterator[Answers]:
    from sluiceway.cli.pull import fetch
    from sluiceway.types import SamplingParams

    files = fetch(model or DEFAULT_MODEL, source)
    typer.echo(f"loading {files.name}", err=True)

    from sluiceway.cli.offline import load

    with load(files, **engine) as llm:
        yield LocalAnswers(llm, SamplingParams(**parameters))


class LocalAnswers:
    """An `LLM` of this process."""

    def __init__(self, llm: LLM, sampling: SamplingParams) -> None:
        self._llm = llm
        self._sampling = sampling

    def stream(self, messages: Messages) -> Generator[str, None, None]:
        return self._llm.stream_chat(messages, self._sampling)


def converse(answers: Answers, system: str | None) -> int:
    """Returns how many answers failed."""
    from sluiceway.cli.conversation import Conversation
    from sluiceway.cli.repl import Repl

    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives `input` line editing and a history)
        typer.echo("/help lists the commands", err=True)
    repl = Repl(answers, Conversation(system), read=_read, show=_show, warn=lambda text: typer.echo(text, err=True))
    repl.run()
    return repl.failures


def _read() -> str:
    return input("> " if sys.stdin.isatty() else "")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
