"""Starts an nginx between clients and a server for a measurement, and stops it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from sluiceway.errors import ConfigError
from sluiceway_lab.load.client import LoadError, Target
from sluiceway_lab.load.own_server import free_port
from sluiceway_lab.load.processes import stop

_START_S = 10.0
_STOP_S = 10.0
_POLL_S = 0.01
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_CONFIG = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    {temporary}
    server {{
        listen 127.0.0.1:{port};
        {locations}
    }}
}}
"""
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
        return "\n            ".join(lines)


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
    command, port, started_s = require_nginx(), free_port(), time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sluiceway-nginx-") as folder, tempfile.TemporaryFile() as log:
        path = Path(folder, "nginx.conf")
        path.write_text(_config(folder, port, locations))
        process = subprocess.Popen(
            [command, "-e", "stderr", "-p", folder, "-c", str(path)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            while not _listens(port):
                if process.poll() is not None or time.perf_counter() > started_s + _START_S:
                    log.seek(0)
                    raise LoadError(f"nginx does not start: {log.read().decode(errors='replace').strip()}")
                time.sleep(_POLL_S)
            yield port
        finally:
            stop(process, _STOP_S)


def _config(folder: str, port: int, locations: str) -> str:
    return _CONFIG.format(
        folder=folder,
        # Otherwise the workers of root run as a user who cannot read our folder.
        user="user root root;" if os.geteuid() == 0 else "",
        temporary="\n    ".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY),
        port=port,
        locations=locations,
    )


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
