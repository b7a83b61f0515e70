"""A model's chat template: Jinja from the model's files, run in a sandbox.

The sandbox keeps a template away from Python. It bounds neither time nor memory: a template may loop for ever or make
gigabytes out of a letter, already while it is compiled, since Jinja computes constant expressions then. So this module
runs in a child process that can be killed (`tokenizer.rendering`), and nowhere else.

The dialect is that of the Hugging Face templates (https://huggingface.co/docs/transformers/chat_templating_writing):
trimmed blocks, `break` and `continue`, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, and the
`generation` block, which marks training data and renders as its body.

A template comes with the model and never with a request. What it is given does come with requests, so whatever goes
wrong while it runs is answered as the client's fault (400), in the template's own words where it has any.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sluiceway.errors import ModelConfigError, RequestError, invalid
from sluiceway.tokenizer.text.tokenizer import TemplateSource

MIN_OUTPUT_CHARS = 1 << 20
OUTPUT_GROWTH = 8
"""A rendering may be this many times as long as the conversation, or `MIN_OUTPUT_CHARS` if that is more."""

_MAX_ERROR_CHARS = 300
"""How much of an error's own words is passed on: a template can make a text of any length its error."""


class ChatTemplate:
    """Compiled once. `ModelConfigError` where the source is not a template.

    `now` gives the time to templates that write today's date.
    """

    def __init__(self, template: TemplateSource, *, now: Callable[[], datetime] = datetime.now) -> None:
        self._variables = dict(template.variables)
        try:
            self._template = _environment(now).from_string(template.source)
        except Exception as error:  # Jinja writes Python: its compiler may object too, or have no memory left
            raise ModelConfigError("chat_template", f"is not valid: {_words_of(error)}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as text, up to the opening of the assistant's turn; `RequestError` if that cannot be."""
        limit = max(MIN_OUTPUT_CHARS, OUTPUT_GROWTH * sum(len(str(message.get("content"))) for message in messages))
        try:
            text = _join_up_to(limit, self._template.generate(self._context(messages)))
            text.encode()  # raises: a template can spell half of a surrogate pair, which is no text
            return text
        except RequestError:
            raise
        except jinja2.TemplateError as error:
            raise _refusal(f"The model's chat template refuses these messages: {_words_of(error)}.") from error
        except Exception as error:  # the template's code may raise anything on content that it did not expect
            raise _refusal(f"The model's chat template cannot render these messages: {_words_of(error)}.") from error

    def _context(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {
            **self._variables,
            "messages": [dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }


def _join_up_to(limit: int, pieces: Iterable[str]) -> str:
    parts: list[str] = []
    n_chars = 0
    for piece in pieces:
        n_chars += len(piece)
        if n_chars > limit:
            raise _refusal(f"The model's chat template makes more than {limit} characters of these messages.")
        parts.append(piece)
    return "".join(parts)


def _words_of(error: Exception) -> str:
    """What the error says, as one short line of text that can be encoded."""
    try:
        line = " ".join(str(error)[: 2 * _MAX_ERROR_CHARS].split())
    except Exception:  # it says something that cannot be built
        line = ""
    words = line[:_MAX_ERROR_CHARS].removesuffix(".").encode("utf-8", "backslashreplace").decode()
    return words or type(error).__name__


def _refusal(message: str) -> RequestError:
    return invalid(message, "messages")


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own filter: that one escapes `<`, `>`, `&` and `'` for use inside HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`: a scope of its own, rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)
