"""All questions in the order in which they are asked. The harmless ones come first; the last one ends the server."""

from __future__ import annotations

from sluiceway.errors import ConfigError
from sluiceway_lab.check import (
    bad_requests,
    characters,
    connections,
    drain,
    first_byte,
    isolation,
    leaving,
    overlap,
    overload,
    slow_reader,
    stop_strings,
    terminal,
)
from sluiceway_lab.check.question import Question

QUESTIONS = (
    overlap.QUESTION,
    isolation.QUESTION,
    first_byte.HEADERS,
    first_byte.SILENCE,
    terminal.QUESTION,
    characters.QUESTION,
    stop_strings.QUESTION,
    connections.QUESTION,
    bad_requests.QUESTION,
    slow_reader.QUESTION,
    leaving.FIN,
    leaving.RST,
    leaving.PLAIN,
    leaving.WAITING,
    leaving.WASTE,
    overload.QUESTION,
    drain.QUESTION,
)


def chosen(names: list[str]) -> list[Question]:
    """Return the questions of these names, or all. Raises `ConfigError` for an unknown name."""
    known = {question.name for question in QUESTIONS}
    for name in names:
        if name not in known:
            raise ConfigError("only", f"must be one of {', '.join(sorted(known))}, not {name!r}")
    return [question for question in QUESTIONS if not names or question.name in names]
