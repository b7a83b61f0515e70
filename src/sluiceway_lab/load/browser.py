"""Starts a headless Chromium, and controls it over a pipe.

The protocol is https://chromedevtools.github.io/devtools-protocol/: one JSON object per message, ended by a NUL.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from sluiceway.errors import ConfigError
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.processes import stop

_COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-features=Translate,OptimizationHints,MediaRouter",
    "--no-first-run",
    "--no-default-browser-check",
    "--remote-debugging-pipe",
)
"""The browser opens pages of this machine only, and makes no requests of its own. It needs no sandbox for that, and
many test machines do not permit one."""
_ANSWER_S = 30.0
_STOP_S = 10.0
_LIMIT_BYTES = 64 << 20
_MOVE = "import os, sys; told, heard = map(int, sys.argv[1:3]); os.dup2(told, 3); os.dup2(heard, 4); "
_MOVE += "os.closerange(5, 1 << 16); os.execv(sys.argv[3], sys.argv[3:])"
"""The browser reads commands from descriptor 3, and writes answers to descriptor 4."""


def browser_command() -> str | None:
    """Return the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, _COMMANDS)), None)


def require_browser() -> str:
    """Raises `ConfigError` if no browser is installed."""
    command = browser_command()
    if command is None:
        raise ConfigError("NAME", "needs Chromium; on Debian and Ubuntu: apt-get install chromium")
    return command


class Page:
    """A page in a browser. Created by `own_page`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.WriteTransport) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session: str | None = None

    async def open(self, url: str) -> None:
        """Raises `LoadError` if the page cannot be shown."""
        target = await self._call("Target.createTarget", url="about:blank")
        attached = await self._call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        shown = await self._call("Page.navigate", url=url)
        if "errorText" in shown:
            raise LoadError(f"the browser does not show {url}: {shown['errorText']}")

    async def evaluate(self, expression: str, limit_s: float) -> Any:
        """Return the value of an expression; if it is a promise, wait for it. Raises `LoadError` for an exception."""
        answer = await self._call(
            "Runtime.evaluate", limit_s, expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"]
            raise LoadError(f"in the browser: {thrown.get('exception', {}).get('description') or thrown['text']}")
        return answer["result"].get("value")

    async def hear(self) -> None:
        """Pass answers to their callers, until the browser has ended."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                answer = msgspec.json.decode((await self._reader.readuntil(b"\0"))[:-1])
                waiting = self._waiting.pop(answer.get("id"), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        for waiting in self._waiting.values():
            waiting.set_exception(LoadError("the browser has ended"))

    async def _call(self, method: str, limit_s: float = _ANSWER_S, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._writer.write(msgspec.json.encode(message) + b"\0")
        try:
            answer = await asyncio.wait_for(self._waiting[number], limit_s)
        except TimeoutError:
            raise LoadError(f"the browser did not answer {method} within {limit_s:g} s") from None
        if "error" in answer:
            raise LoadError(f"the browser refused {method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result


@contextlib.asynccontextmanager
async def own_page(url: str) -> AsyncIterator[Page]:
    """Start a browser with a fresh profile, and open a page, for the length of the block.

    Raises `ConfigError` if no browser is installed, and `LoadError` if it does not do what it is asked to.
    """
    command = require_browser()
    with tempfile.TemporaryDirectory(prefix="sluiceway-browser-", ignore_cleanup_errors=True) as folder:
        told, telling = os.pipe()
        hearing, heard = os.pipe()
        process = _start(command, folder, told, heard)
        try:
            async with _page(hearing, telling) as page:
                await page.open(url)
                yield page
        finally:
            await asyncio.to_thread(stop, process, _STOP_S)


def _start(command: str, folder: str, told: int, heard: int) -> subprocess.Popen[bytes]:
    """Start the browser. It writes only to `folder`, and owns these ends of the two pipes."""
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _MOVE, str(told), str(heard), command, *_FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(told, heard),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": folder},
        )
    finally:
        os.close(told)
        os.close(heard)


@contextlib.asynccontextmanager
async def _page(hearing: int, telling: int) -> AsyncIterator[Page]:
    """Create the page on these ends of the two pipes, and close them after the block."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LIMIT_BYTES)
    incoming, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(hearing, "rb"))
    outgoing, _ = await loop.connect_write_pipe(asyncio.Protocol, os.fdopen(telling, "wb"))
    page = Page(reader, outgoing)
    hears = asyncio.create_task(page.hear())
    try:
        yield page
    finally:
        hears.cancel()
        outgoing.close()
        incoming.close()
        await asyncio.gather(hears, return_exceptions=True)
