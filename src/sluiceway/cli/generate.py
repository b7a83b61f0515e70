"""`sluiceway generate`: complete one prompt in this process; stdout gets the text and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Annotated, Any

import msgspec
import typer

from sluiceway.cli.exits import command
from sluiceway.cli.options import (
    DEFAULT,
    DtypeOption,
    KvCacheTokens,
    Model,
    ModelSource,
    Stop,
    Threads,
    option,
    sampling_flags,
    sampling_of,
    with_parameters,
)
from sluiceway.cli.pull import fetch, load
from sluiceway.store.catalog import DEFAULT_MODEL, Source

PromptText = Annotated[str | None, option("--prompt", "The text to continue; without it, standard input is read.")]
_JSON_FIELDS = ("text", "token_ids", "finish_reason", "prompt_tokens")

AsJson = Annotated[bool, option("--json", f"Print one JSON object ({', '.join(_JSON_FIELDS)}) when it is done.")]


@command
def generate(
    model: Model = DEFAULT_MODEL,
    prompt: PromptText = None,
    stop: Stop = None,
    as_json: AsJson = False,
    dtype: DtypeOption = DEFAULT.dtype,
    kv_cache_tokens: KvCacheTokens = DEFAULT.kv_cache_tokens,
    threads: Threads = DEFAULT.threads,
    source: ModelSource = Source.AUTO,
    **parameters: Any,
) -> None:
    """Complete one prompt, without a server. The prompt goes to the model as it is, without a chat template."""
    text = read_prompt(prompt)
    sampling = sampling_of(parameters, stop)
    files = fetch(model, source)

    with load(files, dtype=dtype, kv_cache_tokens=kv_cache_tokens, threads=threads) as llm:
        if as_json:
            completion = llm.generate(text, sampling, stop=stop or ())[0]
            typer.echo(msgspec.json.encode({name: getattr(completion, name) for name in _JSON_FIELDS}))
        else:
            print_stream(llm.stream(text, sampling, stop=stop or ()))


with_parameters(generate, sampling_flags(max_tokens=256, temperature=0.7, top_p=1.0), after="prompt")


def read_prompt(given: str | None) -> str:
    """Return the text of the flag, else all of standard input."""
    if given is None and sys.stdin.isatty():
        raise typer.BadParameter("give a text, or pipe one in", param_hint="--prompt")
    try:
        text = sys.stdin.read() if given is None else given
        text.encode()
    except UnicodeError as fault:  # Python keeps or refuses invalid bytes, depending on the locale
        place = getattr(fault, "start", 0)
        where = "standard input" if given is None else "the text"
        raise typer.BadParameter(f"{where} is not UTF-8 at character {place}", param_hint="--prompt") from None
    return text


def print_stream(pieces: Generator[str, None, None]) -> None:
    """Print the text. On a terminal a line end follows; a pipe gets exactly the text."""
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        pieces.close()
    if sys.stdout.isatty():
        sys.stdout.write("\n")
