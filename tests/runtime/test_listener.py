"""Binding a socket, and the errors that say why it is not possible."""

from __future__ import annotations

import errno
import resource
import socket

import pytest

from sluiceway.errors import ConfigError
from sluiceway.runtime.listener import allow_connections, bind


def test_port_0_binds_a_free_port() -> None:
    """The socket does not listen yet."""
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(listener.getsockname())


def test_a_port_can_be_reused_immediately() -> None:
    """A stopped server leaves connections in TIME_WAIT."""
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with bind("localhost", port) as listener:
        assert listener.getsockname()[1] == port


def test_a_busy_port_is_named() -> None:
    """The error says what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port} on 127.0.0.1 is in use") as caught:
            bind("127.0.0.1", port)
    assert caught.value.field == "port"


def test_a_privileged_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:

    class Forbidding(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("sluiceway.runtime.listener.socket.socket", Forbidding)
    with pytest.raises(ConfigError, match="80 needs administrator rights"):
        bind("127.0.0.1", 80)


def test_a_host_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="999.1.1.1") as caught:
        bind("999.1.1.1", 0)
    assert caught.value.field == "host"


def test_a_host_of_another_machine_is_named() -> None:
    """RFC 5737 reserves the address for documentation."""
    with pytest.raises(ConfigError, match="192.0.2.1"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("hard", "allowed"), [(4096, 4096), (1_000_000, 65_536), (resource.RLIM_INFINITY, 65_536), (256, None)]
)
def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch, hard: int, allowed: int | None) -> None:
    """The soft limit is never lowered, and the hard one stays."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    allow_connections()
    assert limits == ([] if allowed is None else [(allowed, hard)])
