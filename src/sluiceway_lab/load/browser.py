"""Starts a headless Chromium, and controls it by the protocol of its developer tools.

https://chromedevtools.github.io/devtools-protocol/: one JSON object per message of a WebSocket.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from websockets import connect
from websockets.exceptions import WebSocketException

from sluiceway.errors import ConfigError
from sluiceway_lab.load.client import LoadError, Target, dial, until
from sluiceway_lab.load.processes import StartedProcess, started

_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --disable-background-networking "
    "--disable-component-update --disable-default-apps --disable-extensions --disable-sync --no-first-run "
    "--disable-features=Translate,OptimizationHints,MediaRouter --no-default-browser-check --remote-debugging-port=0"
).split()
"""The browser opens pages of this machine only, and makes no requests of its own. It needs no sandbox for that, and
many test machines do not permit one."""
_ANSWER_S = 30.0
_STOP_S = 10.0
_POLL_S = 0.02
_LIMIT_BYTES = 64 << 20


def browser_command() -> str | None:
    """Return the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, _COMMANDS)), None)


@dataclass(frozen=True, slots=True)
class Page:
    """A page in a browser. Created by `own_page`."""

    socket_url: str

    async def evaluate(self, expression: str, limit_s: float) -> Any:
        """Return the value of an expression; if it is a promise, wait for it. Raises `LoadError` for an exception."""
        answer = await self.call(
            "Runtime.evaluate", limit_s, expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise LoadError(f"in the browser: {thrown.get('exception', {}).get('description') or thrown['text']}")
        return answer["result"].get("value")

    async def call(self, method: str, limit_s: float = _ANSWER_S, **params: Any) -> dict[str, Any]:
        """Call a method on a connection of its own, on which nothing but the answer comes. Raises `LoadError`."""
        try:
            async with asyncio.timeout(limit_s), connect(self.socket_url, max_size=_LIMIT_BYTES) as socket:
                await socket.send(msgspec.json.encode({"id": 1, "method": method, "params": params}), text=True)
                answer = msgspec.json.decode(await socket.recv())
        except TimeoutError:
            raise LoadError(f"the browser did not answer {method} within {limit_s:g} s") from None
        except (OSError, WebSocketException) as fault:
            raise LoadError(f"the browser has ended: {fault}") from None
        if "error" in answer:
            raise LoadError(f"the browser refused {method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result


@contextlib.asynccontextmanager
async def own_page(url: str) -> AsyncIterator[Page]:
    """Start a browser with a fresh profile, and open a page, for the length of the block.

    Raises `ConfigError` if no browser is installed, and `LoadError` if it does not do what it is asked to.
    """
    command = browser_command()
    if command is None:
        raise ConfigError("NAME", "needs Chromium; on Debian and Ubuntu: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="sluiceway-browser-", ignore_cleanup_errors=True) as folder:
        # The browser writes only to `folder`.
        environment = ["env", f"HOME={folder}"]
        with started([*environment, command, *_FLAGS, f"--user-data-dir={folder}"], _STOP_S) as browser:
            page = await _first_page(browser, Path(folder, "DevToolsActivePort"))
            shown = await page.call("Page.navigate", url=url)
            if "errorText" in shown:
                raise LoadError(f"the browser does not show {url}: {shown['errorText']}")
            yield page


async def _first_page(browser: StartedProcess, port_file: Path) -> Page:
    """Wait until the browser listens, and open an empty page."""

    async def look() -> Target | None:
        if browser.process.poll() is not None:
            raise LoadError(f"the browser has ended: {browser.log_tail()}")
        return _written(port_file)

    target = await until(look, "the browser to listen", limit_s=_ANSWER_S, pause_s=_POLL_S)
    assert target is not None
    async with dial(target, target.request("PUT", "/json/new?about:blank")) as connection:
        reply = await connection.read_reply(_ANSWER_S)
    reply.require_ok()
    return Page(msgspec.json.decode(reply.body)["webSocketDebuggerUrl"])


def _written(port_file: Path) -> Target | None:
    """Return where the browser listens, once it has written that to the first of two lines."""
    lines = port_file.read_text().splitlines() if port_file.exists() else []
    return Target("127.0.0.1", int(lines[0])) if len(lines) > 1 else None
