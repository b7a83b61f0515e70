"""The listening socket of the server, and clear errors if the address is not available."""

from __future__ import annotations

import contextlib
import errno
import resource
import socket
import sys

from sluiceway.errors import ConfigError

BACKLOG = 2048
"""How many connections may wait in the kernel to be accepted. The system may allow fewer."""

_OPEN_FILES = 65_536
"""Enough for all connections of one process."""


def allow_connections() -> None:
    """Raise the soft limit of open files. Each connection needs one, and a common default is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if resource.RLIM_INFINITY != soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a system may have another, lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> int:
    """Return how many files this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises `ConfigError` if the address is not available."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except socket.gaierror:
        raise ConfigError("host", f"{host!r} is neither an address nor a name that this machine knows") from None
    except OSError as error:
        raise _config_error(error, host, port) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Let the kernel queue connections. From now on no other socket can listen on the address.

    Raises `ConfigError` if another socket is bound to the same address and has begun to listen before.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise _config_error(error, host, port) from None


def _config_error(error: OSError, host: str, port: int) -> ConfigError:
    match error.errno:
        case errno.EADDRINUSE:
            return ConfigError("port", f"{port} on {host} is in use; choose another one, or 0 for any free one")
        case errno.EACCES:
            return ConfigError("port", f"{port} needs administrator rights; choose one above 1023")
        case errno.EADDRNOTAVAIL:
            return ConfigError("host", f"{host} is not an address of this machine; 127.0.0.1 and 0.0.0.0 always are")
        case _:
            return ConfigError("host", f"cannot listen on {host}:{port}: {error.strerror}")
