"""Puts something between clients and a server: an nginx, or a relay that cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Literal

from sluiceway.errors import ConfigError
from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.processes import free_port, started

_READ_BYTES = 1 << 16
_HEAD_END = b"\r\n\r\n"
_START_S = 10.0
_STOP_S = 10.0
_POLL_S = 0.01
_CONFIG = resources.files("sluiceway_lab.load").joinpath("nginx.conf")
_LOCATIONS = """
location = / {{
    default_type text/html;
    return 200 "<!doctype html><title>Sluiceway's lab</title>";
}}
location / {{
    proxy_pass http://{host}:{port};
    proxy_set_header Host $http_host;  # a page that came through here changes things at its own host
    proxy_set_header Connection "";
    {directives}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRules:
    """The configuration of nginx for answers. The defaults are those of nginx."""

    http_version: Literal["1.0", "1.1"] = "1.0"
    """The version spoken with the server. In 1.0 an answer of unknown length ends with its connection.
    https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_http_version"""
    buffers: bool = True
    """True if nginx collects an answer and forwards full buffers."""
    heeds_header: bool = True
    """True if the server can switch buffering off for an answer with `X-Accel-Buffering: no`."""
    read_timeout_s: float = 60.0
    """After such a silence of the server, nginx gives up."""
    send_timeout_s: float = 60.0
    """If the client reads nothing for so long, nginx gives up."""

    @property
    def directives(self) -> str:
        lines = [
            f"proxy_http_version {self.http_version};",
            f"proxy_buffering {'on' if self.buffers else 'off'};",
            f"proxy_read_timeout {self.read_timeout_s * 1e3:.0f}ms;",
            f"send_timeout {self.send_timeout_s * 1e3:.0f}ms;",
        ]
        if not self.heeds_header:
            lines.append("proxy_ignore_headers X-Accel-Buffering;")
        return "\n    ".join(lines)


def nginx_command() -> str | None:
    """Return the path of nginx, or None. It is often outside the search path of users."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    return shutil.which("nginx", path=path)


def require_nginx() -> str:
    """Raises `ConfigError` if nginx is not installed."""
    command = nginx_command()
    if command is None:
        raise ConfigError("NAME", "needs nginx; on Debian and Ubuntu: apt-get install nginx-light")
    return command


@contextlib.contextmanager
def own_nginx(locations: str) -> Iterator[int]:
    """Run nginx with these `location` blocks for the length of the block, and yield its port.

    Raises `ConfigError` if nginx is not installed, and `LoadError` if it does not start.
    """
    command, port = [require_nginx(), "-e", "stderr"], free_port()
    if os.geteuid() == 0:
        command += ["-g", "user root root;"]  # otherwise the workers of root cannot read our folder
    with tempfile.TemporaryDirectory(prefix="sluiceway-nginx-") as folder:
        config = Path(folder, "nginx.conf")
        config.write_text(_CONFIG.read_text().replace("PORT", str(port)))
        Path(folder, "locations.conf").write_text(locations)
        with started([*command, "-p", folder, "-c", str(config)], _STOP_S) as nginx:
            while not _listens(port):
                if nginx.process.poll() is not None or nginx.age_s > _START_S:
                    raise LoadError(f"nginx does not start: {nginx.log_tail()}")
                time.sleep(_POLL_S)
            yield port


@contextlib.contextmanager
def own_proxy(upstream: Target, rules: ProxyRules | None = None) -> Iterator[Target]:
    """Run nginx in front of a server for the length of the block, and yield the address of nginx.

    Its root is an empty page, for a browser whose scripts call the server. Raises as `own_nginx` does, and
    `ConfigError` for a server with TLS.
    """
    if upstream.is_tls:
        raise ConfigError("url", "must be http: behind a proxy of our own, the server speaks no TLS")
    host = f"[{upstream.host}]" if ":" in upstream.host else upstream.host
    directives = (rules or ProxyRules()).directives
    with own_nginx(_LOCATIONS.format(host=host, port=upstream.port, directives=directives)) as port:
        yield replace(upstream, host="127.0.0.1", port=port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut after this many bytes of the answer's body, HTTP framing included."""

    n_bytes: int
    resets: bool


Choose = Callable[[str], Cut | None]
"""Chooses, by the first line of a request (`GET /path HTTP/1.1`), how its answer is cut; None if it is not."""


@contextlib.asynccontextmanager
async def relay(upstream: Target, choose: Choose) -> AsyncIterator[Target]:
    """Forward requests for the length of the block, one for each connection, as nginx sends them by default.

    Yields the address of the relay, on a free port of this machine.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await _forward(upstream, choose, reader, writer)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield replace(upstream, host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    upstream: Target, choose: Choose, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    head = await reader.readuntil(_HEAD_END)
    cut = choose(head.partition(b"\r\n")[0].decode("latin-1"))
    answers, asks = await asyncio.open_connection(upstream.host, upstream.port)
    asks.write(head)
    asking = asyncio.create_task(_copy(reader, asks))
    try:
        await _answer(answers, writer, cut)
    finally:
        asking.cancel()
        asks.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward until the client has left; then leave the server."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(_READ_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Cut | None) -> None:
    writer.write(await reader.readuntil(_HEAD_END))
    n_left = None if cut is None else cut.n_bytes
    while n_left != 0 and (piece := await reader.read(n_left or _READ_BYTES)):
        writer.write(piece)
        await writer.drain()
        if n_left is not None:
            n_left -= len(piece)
    if cut is not None and n_left == 0 and cut.resets:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
