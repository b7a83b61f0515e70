"""Exit codes, and the one place where an expected error becomes a line on stderr.

====  ==========================================================
0     done; for `serve`, told to stop by SIGTERM or SIGINT at any time, and every answer got an end, if only an error
1     it failed while it ran; for `serve`, an answer broke off without an end, or a process died for good
2     a command, a flag, a variable or a setting is wrong
3     the model cannot be found, fetched, verified, read or served
130   interrupted with Ctrl-C
====  ==========================================================
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

import typer

from sluiceway.errors import ConfigError, ModelSourceError, SluicewayError

FAILED = 1
INTERRUPTED = 130

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

P = ParamSpec("P")


def command(body: Callable[P, None]) -> Callable[P, None]:
    """Makes `body` a command that ends in one line and an exit code, never in a traceback, for what can be expected."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            body(*args, **kwargs)
        except SluicewayError as error:
            typer.echo(f"error: {_sentence(error)}", err=True)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _forget_stdout()
            raise typer.Exit(FAILED) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _forget_stdout()
            typer.echo(f"error: the output cannot be written: {error.strerror}", err=True)
            raise typer.Exit(FAILED) from None

    return run


def _sentence(error: SluicewayError) -> str:
    if isinstance(error, ConfigError) and not isinstance(error, ModelSourceError):
        return f"{flag_of(error.field)}: {str(error).removeprefix(f'{error.field}: ')}"
    return str(error)


def flag_of(field: str) -> str:
    """The flag that sets a field of the configuration: `keep_alive_s` is `--keep-alive`; a variable has none."""
    return field if field.isupper() else "--" + field.removesuffix("_s").replace("_", "-")


def _forget_stdout() -> None:
    """Whoever read us has gone: what is still buffered must not fail again when the interpreter flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
