"""A server that cannot start says why in one sentence, and exits."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support.requests import COMPLETIONS
from support.server import START_S, Server, wait_until


def failure_of(server: Server, *, code: int = 2) -> str:
    """The log of a server that fails to start."""
    try:
        assert server.wait_exit(START_S) == code, server.log
    finally:
        server.stop()
    assert "Traceback" not in server.log, server.log
    return server.log


def test_it_names_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        log = failure_of(Server("fake", "--port", str(port)))
    assert str(port) in log
    assert "in use" in log


def test_it_names_a_model_that_does_not_exist() -> None:
    """The name is neither a path nor a known name."""
    log = failure_of(Server("./no/such/model.gguf"), code=3)
    assert "no/such/model.gguf" in log


def test_its_exit_code_is_3_when_the_model_cannot_be_read(tmp_path: Path) -> None:
    """The exit code is the same as that of `generate`."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing that follows from it")
    failure_of(Server(str(path)), code=3)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (("--no-such-flag",), "no-such-flag"),
        (("--port", "70000"), "port"),
        (("--max-running", "0"), "max"),
        (("--drain-timeout", "nan"), "drain"),
        (("--dtype", "float7"), "dtype"),
    ],
    ids=["unknown", "port", "zero", "nan", "choice"],
)
def test_it_names_a_wrong_flag(flags: tuple[str, ...], names: str) -> None:
    """An unknown flag, or an impossible value."""
    assert names in failure_of(Server("fake", *flags))


def test_it_serves_once_it_is_ready() -> None:
    """Once /health/ready is 200, the first request is served and `/stats` is complete."""
    with Server("fake") as server:
        status, answer = server.post(COMPLETIONS, {"model": "fake", "prompt": "hello", "max_tokens": 1})
        assert status == 200, answer
        assert not server.stats()["stale"]


def test_it_says_which_model_it_starts_and_where_it_serves() -> None:
    """Between the two lines a model may load for a while."""
    with Server("fake") as server:
        wait_until(
            lambda: f"serving process=supervisor url=http://127.0.0.1:{server.port}\n" in server.log, "the address"
        )
        assert "starting process=supervisor model=fake\n" in server.log
