"""The log: one line for each event in the life of a request or a process, none for a token, on standard error.

A line has a constant text and fields. Text from a client is always in a field, and escaped, so that it can neither
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
"""Values that need no quotes in a line of text."""

_UNPRINTABLE = re.compile(r"[^\x20-\x7e\n]")
"""Escaped in tracebacks, whose last line can quote a client."""


def configure_log(level: LogLevel, form: LogFormat, *, process: str, stream: TextIO | None = None) -> None:
    """Set up the loggers of `structlog` in this process. They write to `stream`, or to standard error if it is None."""
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
    """Log one line for an error that does not end the process. Tracebacks of many such errors could fill a disk."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "-"
    log.error(event, error=f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARS], at=at, **fields)


class _Writer:
    """Writes the lines of structlog.

    Errors are ignored, so that the server goes on when its log cannot be written: the reader of a pipe has gone, the
    disk is full, or standard error was closed before the start.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(line + "\n")
                self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def render_text(_: WrappedLogger, __: str, fields: EventDict) -> str:
    """Write `2026-01-31T12:00:00Z info accepted rid=7 model="a b"`. A traceback follows in further lines."""
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
