"""Exit codes, and the decorator that turns expected errors into a line on stderr.

====  ==========================================================
0     done; for `serve`: stopped by SIGTERM or SIGINT, and every response was closed, even with an error
1     it failed while it ran; for `serve`: a response broke off, or a process kept dying
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
    """Make a command that ends expected errors with one line and an exit code instead of a traceback."""

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
            _discard_stdout()
            raise typer.Exit(FAILED) from None
        except OSError as error:
            if error.errno not in _FULL:
                raise
            _discard_stdout()
            typer.echo(f"error: the output cannot be written: {error.strerror}", err=True)
            raise typer.Exit(FAILED) from None

    return run


def _sentence(error: SluicewayError) -> str:
    if isinstance(error, ConfigError) and not isinstance(error, ModelSourceError):
        return f"{flag_of(error.field)}: {str(error).removeprefix(f'{error.field}: ')}"
    return str(error)


def flag_of(field: str) -> str:
    """Name the flag of a field: `keep_alive_s` has `--keep-alive`. The name of a variable is returned as it is."""
    return field if field.isupper() else "--" + field.removesuffix("_s").replace("_", "-")


def _discard_stdout() -> None:
    """Send further output to /dev/null, so that the interpreter's last flush does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
