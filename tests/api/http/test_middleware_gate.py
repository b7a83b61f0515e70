"""The gate refuses requests for other hosts, from foreign pages, and with ambiguous headers."""

from __future__ import annotations

import pytest

from sluiceway.api.http.middleware import SOLE_HEADERS, Gate
from sluiceway.config import HOST
from sluiceway.errors import Refusal, RequestError
from support.asgi_driver import Api, fetch
from support.live_http import LiveClient, head, live_http

LOOPBACK = "127.0.0.1"
EVERYWHERE = "0.0.0.0"


async def refusal_of(
    headers: list[tuple[str, str]], *, listens_on: str = LOOPBACK, allowed: tuple[str, ...] = (), method: str = "POST"
) -> Refusal | None:
    """The refusal of a request; None if it is admitted."""
    fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    try:
        Gate(listens_on=listens_on, allowed=allowed).check({"type": "http", "method": method, "headers": fields})
    except RequestError as error:
        return error.refusal
    return None


async def status_of(host: str, **options: object) -> int:
    refusal = await refusal_of([("Host", host)], **options)  # type: ignore[arg-type]
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:80", "localhost.", "127.0.0.1", "127.8.9.1:65535", "[::1]", "[::1]:8000", "127.0.0.1:"],
)
async def test_loopback_answers_to_loopback_names(host: str) -> None:
    for listens_on in (LOOPBACK, "localhost", "::1"):
        assert await status_of(host, listens_on=listens_on) == 200


@pytest.mark.parametrize(
    "host",
    [
        "attacker.example",
        "attacker.example:8000",
        "localhost.attacker.example",
        "10.0.0.1",
        "[::2]",
        "127.1",
        "0.0.0.0",
    ],
)
async def test_loopback_answers_to_no_other_name(host: str) -> None:
    refusal = await refusal_of([("Host", host)], method="GET")
    assert refusal is not None and (refusal.status, refusal.code) == (421, "wrong_host")
    assert "--allowed-host" in refusal.message


@pytest.mark.parametrize(
    "host",
    [
        "",
        "a b",
        "x:abc",
        "x:65536",
        "x:-1",
        "me@x",
        "a..b",
        ".a",
        "[::1",
        "::1",
        "[x]",
        "a/b",
        "a,b",
        "é",
        "x:1:2",
        "[1.2]",
    ],
)
async def test_an_invalid_host_is_refused_everywhere(host: str) -> None:
    for listens_on in (LOOPBACK, EVERYWHERE):
        refusal = await refusal_of([("Host", host)], listens_on=listens_on, allowed=("*",))
        assert refusal is not None and (refusal.status, refusal.param) == (400, "Host")


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        (("chat.example",), "chat.example", 200),
        (("chat.example",), "Chat.Example:8443", 200),
        (("chat.example:8443",), "chat.example:8443", 200),
        (("chat.example:8443",), "chat.example", 421),
        (("a.example", "b.example"), "b.example", 200),
        (("chat.example",), "x.chat.example", 421),
        (("chat.example",), "localhost", 200),
        (("*",), "anything", 200),
    ],
)
async def test_loopback_answers_to_names_that_are_allowed(allowed: tuple[str, ...], host: str, status: int) -> None:
    assert await status_of(host, allowed=allowed) == status


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ((), "any.example", 200),
        ((), "172.17.0.2:8000", 200),
        (("chat.example",), "any.example", 421),
        (("chat.example",), "chat.example", 200),
        (("chat.example",), "172.17.0.2:8000", 200),
        (("chat.example",), "localhost:8000", 200),
    ],
)
async def test_server_of_a_network_answers_to_any_name_unless_some_are_given(
    allowed: tuple[str, ...], host: str, status: int
) -> None:
    assert await status_of(host, allowed=allowed, listens_on=EVERYWHERE) == status


@pytest.mark.parametrize(
    ("allowed", "host", "status"),
    [
        ("[fd00::1]", "[fd00::1]:8000", 200),
        ("[fd00::1]", "[FD00:0::1]", 200),
        ("[fd00::1]:8000", "[fd00::1]", 421),
        ("a.example.", "a.example", 200),
        ("a.example.", "A.example:5", 200),
        ("a.example:8443", "a.example.:8443", 200),
        ("a.example:8443", "a.example:08443", 200),
        ("a.example:8443", "a.example:844", 421),
        ("a.example:8443", "a.example", 421),
        ("a.example:0", "a.example", 421),
    ],
)
async def test_each_spelling_of_an_allowed_name_is_allowed(allowed: str, host: str, status: int) -> None:
    """Addresses have several spellings, and a name may end with a dot."""
    assert await status_of(host, allowed=(allowed,)) == status
    refusal = await refusal_of([("Host", "localhost"), ("Origin", f"http://{host}")], allowed=(allowed,))
    assert (refusal is None) == (status == 200)


async def test_the_flag_in_the_error_message_works() -> None:
    """An IPv6 address needs its brackets."""
    refusal = await refusal_of([("Host", "[fd00::1]:8000")])
    assert refusal is not None and "`--allowed-host [fd00::1]`" in refusal.message
    assert HOST.fullmatch("[fd00::1]")


async def test_a_client_of_http_1_0_needs_no_host() -> None:
    assert await refusal_of([]) is None


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "is_taken"),
    [
        ("http://localhost:8000", "localhost:8000", (), True),
        ("HTTP://LOCALHOST:8000", "localhost:8000", (), True),
        ("http://localhost", "localhost:80", (), True),
        ("https://localhost", "localhost", (), True),
        ("http://[::1]:8000", "[::1]:8000", (), True),
        ("http://localhost:3000", "localhost:8000", (), False),
        ("http://127.0.0.1:8000", "localhost:8000", (), False),
        ("https://evil.example", "localhost:8000", (), False),
        ("null", "localhost:8000", (), False),
        ("null", "localhost:8000", ("chat.example",), False),
        ("", "localhost", (), False),
        ("https://chat.example", "localhost:8000", ("chat.example",), True),
        ("http://localhost:3000", "localhost:8000", ("localhost:3000",), True),
        ("null", "localhost:8000", ("*",), True),
        ("https://evil.example", "localhost:8000", ("chat.example",), False),
    ],
)
async def test_page_of_another_origin_changes_nothing(
    origin: str, host: str, allowed: tuple[str, ...], is_taken: bool
) -> None:
    headers = [("Host", host), ("Origin", origin)]
    for method in ("POST", "DELETE", "PUT", "PATCH"):
        refusal = await refusal_of(headers, allowed=allowed, method=method)
        assert (refusal is None) is is_taken
        assert refusal is None or (refusal.status, refusal.code, refusal.param) == (403, "foreign_origin", "Origin")
    for method in ("GET", "HEAD", "OPTIONS"):
        assert await refusal_of(headers, allowed=allowed, method=method) is None


@pytest.mark.parametrize(
    ("origin", "page"), [("http://localhost:5173", "of another origin"), ("null", "without an origin of its own")]
)
async def test_a_page_of_another_origin_gets_advice(origin: str, page: str) -> None:
    """It does not name `--allowed-host`: without CORS headers the browser would hide the answer."""
    refusal = await refusal_of([("Host", "localhost:8000"), ("Origin", origin)])
    assert refusal is not None and page in refusal.message and "under one origin" in refusal.message
    assert "no CORS headers are sent" in refusal.message and "under which the server itself" in refusal.message


@pytest.mark.parametrize("name", SOLE_HEADERS.values())
@pytest.mark.parametrize("values", [("a", "a"), ("a", "b")])
async def test_a_header_with_one_meaning_may_come_once(name: str, values: tuple[str, str]) -> None:
    assert await refusal_of([("Host", "localhost"), (name, values[0])], method="GET") is None
    refusal = await refusal_of([("Host", "localhost"), *((name, value) for value in values)])
    assert refusal is not None and (refusal.status, refusal.param) == (400, name)


async def test_a_list_header_may_come_twice() -> None:
    assert await refusal_of([("Accept", "a"), ("Accept", "b"), ("Via", "c"), ("Via", "d")]) is None


async def test_every_route_of_the_application_is_behind_the_gate() -> None:
    api = Api()
    for method, path in (("GET", "/health"), ("GET", "/nothing"), ("POST", "/v1/completions"), ("GET", "/stats")):
        driver = await fetch(api.app, method, path, host="attacker.example")
        assert driver.status == 421 and driver.json()["error"]["code"] == "wrong_host"
        assert driver.headers["x-request-id"]
    assert api.lines[-1]["reason"] == "wrong_host" and b'code="wrong_host"' in api.metrics.render()


@pytest.mark.parametrize(
    "label", ["application/x-www-form-urlencoded", "text/plain;charset=UTF-8", "multipart/form-data; boundary=x"]
)
async def test_a_form_cannot_cancel(label: str) -> None:
    api = Api()
    driver = await fetch(api.app, "POST", "/v1/streams/s/cancel", b"x=1", content_type=label)
    assert driver.status == 400 and driver.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(("target", "status"), [("http://attacker.example", 421), ("http://localhost:1", 200)])
async def test_the_host_of_the_target_counts(target: str, status: int) -> None:
    """It replaces the `Host` header (https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2)."""
    async with live_http(Api().app) as port:
        client = await LiveClient.connect(port)
        other = {421: "localhost", 200: "attacker.example"}[status]
        await client.send(head("GET", f"{target}/health").replace(b"Host: 127.0.0.1", b"Host: " + other.encode()))
        assert (await client.read_answer()).status == status
        client.finish()
