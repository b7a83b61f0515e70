"""A socket of ours, or a sentence that says why not."""

from __future__ import annotations

import errno
import resource
import socket

import pytest

from sluiceway.errors import ConfigError
from sluiceway.runtime.listener import allow_connections, bind


def test_a_free_port_is_found_when_none_is_named() -> None:
    """The system chooses; the socket does not listen yet."""
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(listener.getsockname())


def test_a_port_can_be_had_again_at_once() -> None:
    """A server that was just stopped leaves connections in TIME_WAIT."""
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    with bind("localhost", port) as listener:
        assert listener.getsockname()[1] == port


def test_a_busy_port_is_named() -> None:
    """With what to do about it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"{port} on 127.0.0.1 is in use") as caught:
            bind("127.0.0.1", port)
    assert caught.value.field == "port"


def test_a_port_that_takes_more_rights_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an ordinary user of most systems finds out."""

    class Forbidding(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("sluiceway.runtime.listener.socket.socket", Forbidding)
    with pytest.raises(ConfigError, match="80 needs administrator rights"):
        bind("127.0.0.1", 80)


def test_a_host_that_does_not_exist_is_named() -> None:
    """It is no address."""
    with pytest.raises(ConfigError, match="999.1.1.1") as caught:
        bind("999.1.1.1", 0)
    assert caught.value.field == "host"


def test_a_host_of_another_machine_is_named() -> None:
    """An address, but not one of ours (RFC 5737 keeps it for documentation)."""
    with pytest.raises(ConfigError, match="192.0.2.1"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize(
    ("hard", "allowed"), [(4096, 4096), (1_000_000, 65_536), (resource.RLIM_INFINITY, 65_536), (256, None)]
)
def test_as_many_connections_are_allowed_as_the_system_lets_us(
    monkeypatch: pytest.MonkeyPatch, hard: int, allowed: int | None
) -> None:
    """The soft limit goes up, never down, and the hard one stays."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    allow_connections()
    assert limits == ([] if allowed is None else [(allowed, hard)])
