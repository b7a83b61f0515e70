"""A server that cannot start says why in one sentence, and leaves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from support.requests import COMPLETIONS
from support.server import START_S, Server, wait_until


def failure_of(server: Server, *, code: int = 2) -> str:
    """The log of a server that ends by itself with a failure."""
    try:
        assert server.wait_exit(START_S) == code, server.log
    finally:
        server.stop()
    assert "Traceback" not in server.log, server.log
    return server.log


def test_it_names_the_port_when_that_is_taken() -> None:
    """Another program listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        log = failure_of(Server("fake", "--port", str(port)))
    assert str(port) in log
    assert "in use" in log


def test_it_names_the_model_when_there_is_none_of_that_name() -> None:
    """Neither a path nor a name that it knows."""
    log = failure_of(Server("./no/such/model.gguf"), code=3)
    assert "no/such/model.gguf" in log


def test_its_code_says_that_the_model_cannot_be_read(tmp_path: Path) -> None:
    """As that of `generate` does: what a process finds out when it loads is no accident."""
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
def test_it_names_the_flag_when_that_is_wrong(flags: tuple[str, ...], names: str) -> None:
    """An unknown flag, or a value that cannot be."""
    assert names in failure_of(Server("fake", *flags))


def test_it_serves_from_the_moment_when_it_says_ready() -> None:
    """Once /health/ready says 200, the first request is not refused and the accounts are complete."""
    with Server("fake") as server:
        status, answer = server.post(COMPLETIONS, {"model": "fake", "prompt": "hello", "max_tokens": 1})
        assert status == 200, answer
        assert not server.stats()["stale"]


def test_it_says_which_model_it_starts_and_where_it_serves() -> None:
    """Between the two a model may load for a while."""
    with Server("fake") as server:
        wait_until(
            lambda: f"serving process=supervisor url=http://127.0.0.1:{server.port}\n" in server.log, "the address"
        )
        assert "starting process=supervisor model=fake\n" in server.log
