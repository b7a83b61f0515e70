"""A model's chat template: Jinja from the model's files, run in a sandbox.

The sandbox keeps a template away from Python. It limits neither time nor memory: a template may loop for ever, or make
gigabytes out of one letter, even while it is compiled, because Jinja computes constant expressions then. So this module
runs only in child processes that can be killed (`tokenizer.rendering`).

The dialect is that of the Hugging Face templates (https://huggingface.co/docs/transformers/chat_templating_writing):
trimmed blocks, `break` and `continue`, `raise_exception`, `strftime_now`, `tojson` without HTML escapes, and the
`generation` block, which marks training data and renders as its body.

A template comes with the model and never with a request. Its input comes with requests, so an error while it runs is
answered as an error of the client (400), with the text of the error if there is one.
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
"""The rendered text may be this many times as long as the chat, or `MIN_OUTPUT_CHARS` if that is more."""

_MAX_ERROR_CHARS = 300
"""How much of the text of an error is passed on, since a template can raise an error of any length."""


class ChatTemplate:
    """Renders chats with a template, which it compiles once. Raises `ModelConfigError` if that fails.

    `now` gives the time to templates that write today's date.
    """

    def __init__(self, template: TemplateSource, *, now: Callable[[], datetime] = datetime.now) -> None:
        self._variables = dict(template.variables)
        try:
            self._template = _environment(now).from_string(template.source)
        except Exception as error:  # Jinja generates Python, so its compiler may fail too, or run out of memory
            raise ModelConfigError("chat_template", f"is not valid: {_text_of(error)}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Render the chat as text, up to the beginning of the assistant's turn. Raises `RequestError`."""
        limit = max(MIN_OUTPUT_CHARS, OUTPUT_GROWTH * sum(len(str(message.get("content"))) for message in messages))
        try:
            text = _join_up_to(limit, self._template.generate(self._context(messages)))
            text.encode()  # raises if a template has written a lone surrogate
            return text
        except RequestError:
            raise
        except jinja2.TemplateError as error:
            raise _refusal(f"The model's chat template refuses these messages: {_text_of(error)}.") from error
        except Exception as error:  # the code of a template may raise anything on unexpected content
            raise _refusal(f"The model's chat template cannot render these messages: {_text_of(error)}.") from error

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


def _text_of(error: Exception) -> str:
    """Return the text of the error as one short line that can be encoded."""
    try:
        line = " ".join(str(error)[: 2 * _MAX_ERROR_CHARS].split())
    except Exception:  # its text cannot be made
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
    """Write JSON. Jinja's own filter would escape `<`, `>`, `&` and `'` for use in HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _GenerationBlock(Extension):
    """Renders the body of `{% generation %}...{% endgeneration %}` in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=lineno)
