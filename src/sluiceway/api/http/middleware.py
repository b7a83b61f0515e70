"""What surrounds every request: which requests come in, an id, an envelope for faults, and an orderly end."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from sluiceway.api.http.head import ErrorBody, send_refusal
from sluiceway.api.http.protocol import LINGER_BYTES_PER_S, LINGER_IDLE_S, LINGER_S, MAX_LINGERING
from sluiceway.api.http.request import header_of
from sluiceway.config import HOST
from sluiceway.errors import Refusal, RequestError, invalid
from sluiceway.protocols.common.body import shorten
from sluiceway.protocols.common.errors import refusal_for_status
from sluiceway.refusals import INTERNAL_ERROR

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")

LINGER_BYTES = 1 << 30
"""How many unwanted bytes a client may still send. `protocol` bounds their time and speed."""

Refuse = Callable[[Refusal, Scope, Send], Awaitable[None]]


def request_id_of(scope: Scope) -> str:
    """The id that `Edge` gave to this request."""
    request_id: str = scope["state"]["request_id"]
    return request_id


class Edge:
    """The only ASGI layer around the application: each layer costs a call for each message.

    It gives the request an id (`x-request-id`; a valid id of the client is kept), refuses what the gate does not admit,
    and turns an unexpected exception into a 500.

    After a response to a request whose body was not read to its end, it closes the connection. A close with unread
    bytes makes the kernel reset the connection, and the reset can overtake the response. So the rest of the body is
    read and dropped first, within bounds. The client has the whole response by then.
    https://www.rfc-editor.org/rfc/rfc9112#section-9.6
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        new_id: Callable[[], str],
        log: FilteringBoundLogger,
        gate: Gate,
        refuse: Refuse,
        error_body_of: Callable[[Scope], ErrorBody],
    ) -> None:
        self._app = app
        self._error_body_of = error_body_of
        self._new_id = new_id
        self._log = log
        self._gate = gate
        self._refuse = refuse
        self._n_lingering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header_of(scope, b"x-request-id")
        request_id = given if given is not None and _SANE_ID.fullmatch(given) else self._new_id().encode()
        scope["state"] = {**scope.get("state", {}), "request_id": request_id.decode()}
        has_started = False
        is_read = not _has_body(scope)

        async def receive_noting() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def send_from_here(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = [*message.get("headers", ()), (b"x-request-id", request_id)]
                if not is_read:
                    headers.append((b"connection", b"close"))
                await send({**message, "headers": headers})
            elif is_read or message.get("more_body", False):
                await send(message)
            else:
                await send({**message, "more_body": True})
                await self._discard(receive)
                await send({"type": "http.response.body"})

        try:
            try:
                self._gate.check(scope)
            except RequestError as error:
                await self._refuse(error.refusal, scope, send_from_here)
            else:
                await self._app(scope, receive if is_read else receive_noting, send_from_here)
        except Exception:
            self._log.exception("request failed", request_id=request_id.decode(), path=scope["path"])
            if has_started:
                raise  # the server breaks the connection off, so that the client does not take a part for the whole
            await send_refusal(send_from_here, INTERNAL_ERROR, self._error_body_of(scope))

    async def _discard(self, receive: Receive) -> None:
        if self._n_lingering >= MAX_LINGERING:
            return
        self._n_lingering += 1
        try:
            async with asyncio.timeout(LINGER_S):
                await _read_all(receive)
        except TimeoutError:
            return
        finally:
            self._n_lingering -= 1


def _has_body(scope: Scope) -> bool:
    return header_of(scope, b"transfer-encoding") is not None or header_of(scope, b"content-length") not in (None, b"0")


async def _read_all(receive: Receive) -> None:
    """Read and drop the rest of a body. Raises `TimeoutError` if nothing comes for a while."""
    n_bytes = 0
    while n_bytes < LINGER_BYTES:
        async with asyncio.timeout(LINGER_IDLE_S):
            message = await receive()
        n_new_bytes = len(message.get("body", b""))
        n_bytes += n_new_bytes
        if not message.get("more_body", False):
            return
        await asyncio.sleep(n_new_bytes / LINGER_BYTES_PER_S)


SOLE_HEADERS = {
    name.lower().encode(): name
    for name in (
        "Authorization",
        "Content-Encoding",
        "Content-Type",
        "Idempotency-Key",
        "Last-Event-ID",
        "Origin",
        "Sluiceway-Slow-Client",
        "X-Api-Key",
        "X-Request-Id",
        "X-Stream-Id",
    )
}
"""Headers that may come once. The parser of the head checks `Host` and the headers that frame a body."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": "80", "https": "443"}


class Gate:
    """Admits requests that name this server, come from no page of another site, and are unambiguous.

    A page of another site can make a browser send requests to this machine. It can read the answers if its own host
    name leads to this machine (DNS rebinding). Then the browser sends that name as `Host`. The page can also change
    things without reading answers. Such a request has the `Origin` of the page. Programs send no `Origin`, and their
    `Host` is the name by which they found the server.
    """

    def __init__(self, *, listens_on: str, allowed: tuple[str, ...]) -> None:
        """`allowed` are more names of this server, with or without a port; `*` allows every name and every origin.

        A server that other machines can reach may have names that it does not know. It answers to every name unless
        some are given.
        """
        self._allowed = frozenset(map(_host_of, allowed))
        self._is_local = _is_loopback(listens_on)
        self._own_name = listens_on.lower()
        self._takes_any_origin = "*" in allowed
        self._takes_any_host = self._takes_any_origin or not (allowed or self._is_local)

    def check(self, scope: Scope) -> None:
        """Raise `RequestError` (400, 403 or 421) if the request must not come in."""
        seen: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in SOLE_HEADERS and name in seen:
                header = SOLE_HEADERS[name]
                raise invalid(f"The header `{header}` came more than once; send it once.", header)
            seen[name] = value
        host = seen.get(b"host")
        if host is not None:  # a request of HTTP/1.0 may have none, and browsers do not use HTTP/1.0
            self._check_host(host.decode("latin-1"))
        if b"origin" in seen and scope["method"] not in _READING:
            self._check_origin(seen[b"origin"].decode("latin-1"), (host or b"").decode("latin-1"))

    def _check_host(self, host: str) -> None:
        if not HOST.fullmatch(host):
            raise invalid(
                f"The header `Host` must be a name or an address, perhaps with a port, not {shorten(host)}.", "Host"
            )
        if self._takes_any_host or self._answers_to(host):
            return
        name = _host_of(host)[0]
        flag = f"[{name}]" if ":" in name else name[:64]
        where = "listens to this machine alone" if self._is_local else "answers to the names that it was given"
        raise RequestError(
            refusal_for_status(
                421,
                f"This server does not answer to the host {shorten(host)}: it {where}."
                f" Start it with `--allowed-host {flag}` if it should.",
            )
        )

    def _answers_to(self, host: str) -> bool:
        name = _host_of(host)[0]
        if self._is_allowed(host) or name == self._own_name or _is_loopback(name):
            return True
        return not self._is_local and _is_address(name)  # no attacker can make an address lead elsewhere

    def _check_origin(self, origin: str, host: str) -> None:
        scheme, _, rest = origin.lower().partition("://")
        default = _PORTS.get(scheme, "")
        if self._takes_any_origin or (
            rest and (self._is_allowed(rest) or _full(rest, default) == _full(host, default))
        ):
            return
        page = "without an origin of its own (a file, a sandboxed frame)" if scheme == "null" else "of another origin"
        raise RequestError(
            Refusal(
                status=403,
                code="foreign_origin",
                message=f"A page {page} must not change anything here (`Origin` is {shorten(origin)})"
                " and cannot read this server's answers: no CORS headers are sent."
                " Serve the page and the API under one origin, for example by a proxy."
                " `--allowed-host` names hosts under which the server itself is reached.",
                param="Origin",
            )
        )

    def _is_allowed(self, host: str) -> bool:
        name, port = _host_of(host)
        return (name, "") in self._allowed or (name, port) in self._allowed


def _host_of(host: str) -> tuple[str, str]:
    """Name and port ("" without one). Brackets and a final dot are removed, and each address has one spelling."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host.lower(), ""
    name = name.strip("[]").removesuffix(".")
    return str(ipaddress.ip_address(name)) if _is_address(name) else name, port.lstrip("0") or port[:1]


def _full(host: str, default_port: str) -> tuple[str, str]:
    """Name and port, with the default port where none is given."""
    name, port = _host_of(host)
    return name, port or default_port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)
