"""Every answer has an id, every fault an envelope, and an unread body is dropped in order."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from sluiceway.api.http import middleware
from sluiceway.api.http.middleware import Edge, Gate, request_id_of
from sluiceway.errors import Refusal
from sluiceway.protocols.common.errors import error_body
from support.asgi_driver import AsgiDriver, record_log, settle


def edge_and_log(app: ASGIApp) -> tuple[ASGIApp, list[dict[str, Any]]]:
    log, lines = record_log()
    gate = Gate(listens_on="127.0.0.1", allowed=())
    edge = Edge(app, new_id=lambda: "made-up", log=log, gate=gate, refuse=never, error_body_of=lambda _: error_body)
    return edge, lines


async def never(refusal: Refusal, scope: Scope, send: Send) -> None:
    raise AssertionError(refusal)


def edge_around(app: ASGIApp) -> ASGIApp:
    return edge_and_log(app)[0]


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers without reading."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


async def read_and_answer(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await answer(scope, receive, send)


async def stream(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


# Ids.


@pytest.mark.parametrize("given", ["x", "abc-123_~!", "z" * 128])
async def test_a_valid_id_of_the_client_is_used(given: str) -> None:
    """It is printable and short."""
    driver = AsgiDriver(edge_and_log(answer)[0], headers={"X-Request-Id": given})
    await driver.run()
    assert driver.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "z" * 129, "a b", "a\tb", "a\r\nset-cookie: x", "é", "\x7f"])
async def test_an_invalid_id_is_replaced(given: str) -> None:
    """It is never sent back."""
    driver = AsgiDriver(edge_and_log(answer)[0], headers={"X-Request-Id": given})
    await driver.run()
    assert driver.headers["x-request-id"] == "made-up"


async def test_the_application_knows_the_id() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(request_id_of(scope))
        await answer(scope, receive, send)

    await AsgiDriver(edge_and_log(app)[0]).run()
    assert seen == ["made-up"]


# Faults.


async def test_an_unexpected_fault_is_a_500_in_the_envelope() -> None:
    """The answer has no details; the log has them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("/secret/path")

    guarded, lines = edge_and_log(app)
    driver = AsgiDriver(guarded, path="/x")
    await driver.run()
    assert driver.status == 500 and driver.headers["x-request-id"] == "made-up"
    assert driver.json()["error"]["code"] == "internal_error" and b"secret" not in driver.body
    assert lines[0]["event"] == "request failed" and lines[0]["path"] == "/x" and lines[0]["exc_info"]


async def test_a_fault_in_an_answer_breaks_it_off() -> None:
    """The server closes the connection, so that the client does not take the part for the whole."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("broken")

    driver = AsgiDriver(edge_and_log(app)[0])
    with pytest.raises(ValueError, match="broken"):
        await driver.run()
    assert not driver.is_over


# Unread bodies.


@pytest.mark.parametrize("app", [answer, read_and_answer])
async def test_nothing_changes_when_there_is_no_body(app: ASGIApp) -> None:
    """A GET, or a body of length zero."""
    for headers in ({}, {"Content-Length": "0"}):
        driver = AsgiDriver(edge_around(app), headers=headers)
        await driver.run()
        assert driver.headers == {"content-length": "2", "x-request-id": "made-up"} and len(driver.sent) == 2


async def test_nothing_changes_when_the_body_was_read() -> None:
    """The connection can be used again."""
    driver = AsgiDriver(edge_around(read_and_answer), "POST", body=[b"a", b"b"])
    await driver.run()
    assert "connection" not in driver.headers and driver.is_over


@pytest.mark.parametrize("app", [answer, stream])
async def test_the_rest_of_an_unread_body_is_read_before_the_connection_ends(app: ASGIApp) -> None:
    """The client has the whole answer by then."""
    driver = AsgiDriver(edge_around(app), "POST", body=[b"a"] * 5)
    await driver.run()
    assert driver.headers["connection"] == "close"
    assert driver.body in (b"no", b"ab") and driver.is_over
    assert not driver.pieces


async def test_an_endless_body_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are bounded."""
    monkeypatch.setattr(middleware, "LINGER_BYTES", 10)
    driver = AsgiDriver(edge_around(answer), "POST", body=[b"abcd"] * 9)
    await driver.run()
    assert driver.is_over and len(driver.pieces) == 6


async def test_a_body_that_does_not_come_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is bounded. The client has the answer meanwhile."""
    monkeypatch.setattr(middleware, "LINGER_S", 0.0)
    driver = AsgiDriver(edge_around(answer), "POST", body=[b"a"], sends_all=False)
    await driver.run()
    assert driver.is_over


async def test_a_silent_client_is_waited_for_less_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is shorter than that of a client that sends."""
    monkeypatch.setattr(middleware, "LINGER_IDLE_S", 0.0)
    driver = AsgiDriver(edge_around(answer), "POST", body=[b"a"], sends_all=False)
    await driver.run()
    assert driver.is_over


async def test_the_number_of_lingering_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients are answered, and their connections closed."""
    monkeypatch.setattr(middleware, "MAX_LINGERING", 1)
    app = edge_around(answer)
    first = AsgiDriver(app, "POST", body=[b"a"], sends_all=False).start()
    await settle()
    second = AsgiDriver(app, "POST", body=[b"a"], sends_all=False)
    await second.run()
    assert second.is_over and not first.is_over
    first.vanish()
    await first.done()
    third = AsgiDriver(app, "POST", body=[b"a"] * 3)
    await third.run()
    assert not third.pieces


async def test_the_client_has_the_answer_while_the_rest_is_read() -> None:
    """It reads the answer and leaves, which ends the wait."""
    driver = AsgiDriver(edge_around(answer), "POST", body=[b"a"], sends_all=False).start()
    await settle()
    assert driver.body == b"no"
    driver.vanish()
    await driver.done()
