"""The lifecycle log: one line per event of a request's or a process' life, none per token, to standard error.

A line is a constant sentence and fields. What came from a client stands in a field, escaped, so that it can neither
forge a line nor send a control sequence to a terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import traceback
from typing import TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

from sluiceway.config import LogFormat, LogLevel

_MAX_ERROR_CHARS = 300

_BARE = re.compile(r"[A-Za-z0-9_.,:/@+-]+")
"""Values that need no quotes in a text line."""

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")
"""What a traceback may not show as it is: its last line can quote a client."""


def configure_log(level: LogLevel, form: LogFormat, *, process: str, stream: TextIO | None = None) -> None:
    """Set up what `structlog.get_logger()` gives in this process: lines to `stream` (standard error if None)."""
    render = structlog.processors.JSONRenderer(ensure_ascii=True) if form == "json" else render_text

    def name_process(_: WrappedLogger, __: str, fields: EventDict) -> EventDict:
        return {"process": process, **fields}

    structlog.configure(
        processors=[
            name_process,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_: _Writer(stream or sys.stderr),
    )


def log_fault(log: FilteringBoundLogger, event: str, error: BaseException, **fields: object) -> None:
    """One line for a fault that is survived: a traceback for each of them would fill a disk."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "-"
    log.error(event, error=f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS], at=at, **fields)


class _Writer:
    """What structlog ends in. A log that cannot be written (nobody reads it any more, the disk is full, standard error
    was closed before the start) stops no server."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(line + "\n")
                self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def render_text(_: WrappedLogger, __: str, fields: EventDict) -> str:
    """`2026-01-31T12:00:00Z info accepted rid=7 model="a b"`; a traceback follows on lines of its own."""
    traceback = fields.pop("exception", None)
    head = f"{fields.pop('timestamp')} {fields.pop('level')} {fields.pop('event')}"
    line = " ".join([head, *(f"{name}={_quoted(value)}" for name, value in fields.items())])
    return f"{line}\n{_UNPRINTABLE.sub(_escaped, traceback)}" if traceback else line


def _quoted(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if _BARE.fullmatch(text) else json.dumps(text)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
