"""Which requests come in at all: those that name this server, come from no foreign page, and mean one thing.

A page of another site can make a browser send requests to this machine. It can read the answers if its own name leads
here (DNS rebinding): the browser then sends that name as `Host`. And it can change things without reading answers: such
a request has an `Origin` that is not this server's. Programs send no `Origin`, and the name by which they found us.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from sluiceway.config import HOST
from sluiceway.errors import Refusal, RequestError, invalid
from sluiceway.protocols.openai.errors import refusal_for_status
from sluiceway.protocols.openai.values import shorten

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
"""Headers that mean one thing. `Host` and those that frame a body are looked after where the head is parsed."""

_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": "80", "https": "443"}

Refuse = Callable[[Refusal, Scope, Send], Awaitable[None]]


class Gate:
    """A layer around an ASGI application, which answers what does not come in with `refuse`."""

    def __init__(self, app: ASGIApp, *, listens_on: str, allowed: tuple[str, ...], refuse: Refuse) -> None:
        """`allowed` are more names of this server, with a port or without; `*` is any name, and any origin.

        A server that other machines can reach has names that it does not know: it answers to any unless some are given.
        """
        self._app = app
        self._refuse = refuse
        self._allowed = frozenset(map(_host_of, allowed))
        self._is_local = _is_loopback(listens_on)
        self._own_name = listens_on.lower()
        self._takes_any_origin = "*" in allowed
        self._takes_any_host = self._takes_any_origin or not (allowed or self._is_local)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except RequestError as error:
            await self._refuse(error.refusal, scope, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Raises `RequestError`: 400, 403, 421."""
        seen: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name in SOLE_HEADERS and name in seen:
                header = SOLE_HEADERS[name]
                raise invalid(f"The header `{header}` came more than once; it means one thing.", header)
            seen[name] = value
        host = seen.get(b"host")
        if host is not None:  # HTTP/1.0 has none, and no browser speaks it
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
        return not self._is_local and _is_address(name)  # no page is found by a name that is an address

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
    """Name and port, "" where there is none: without brackets and a last dot, and one text for each address."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or port.endswith("]"):
        name, port = host.lower(), ""
    name = name.strip("[]").removesuffix(".")
    return str(ipaddress.ip_address(name)) if _is_address(name) else name, port.lstrip("0") or port[:1]


def _full(host: str, default_port: str) -> tuple[str, str]:
    """Name and port, also where that is the usual one."""
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
