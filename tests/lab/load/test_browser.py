"""A browser, on scripted pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load import browser as module
from sluiceway_lab.load.browser import own_page
from sluiceway_lab.load.client import LoadError
from support.scripted_http import plain, scripted_server
from support.server import is_alive
from support.system import needs_browser
from support.target_servers import NOWHERE


@needs_browser
@pytest.mark.e2e
async def test_expressions_are_evaluated_in_the_page() -> None:
    async with scripted_server({"/": [plain(200, b"<title>here</title>", "text/html")]}) as script:
        async with own_page(script.target.url) as page:
            assert await page.evaluate("location.origin", 10.0) == script.target.url
            assert await page.evaluate("Promise.resolve({one: [1, null]})", 10.0) == {"one": [1, None]}
            with pytest.raises(LoadError, match="in the browser: Error: not that"):
                await page.evaluate("Promise.reject(new Error('not that'))", 10.0)
            with pytest.raises(LoadError, match="did not answer Runtime.evaluate within 0.1 s"):
                await page.evaluate("new Promise(() => {})", 0.1)


@needs_browser
@pytest.mark.e2e
async def test_missing_page_is_an_error() -> None:
    with pytest.raises(LoadError, match="the browser does not show .*: net::ERR"):
        async with own_page(NOWHERE.url):
            raise AssertionError("it is shown")


async def test_browser_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMANDS", ("true",))
    with pytest.raises(LoadError, match="the browser has ended"):
        async with own_page(NOWHERE.url):
            raise AssertionError("it is shown")


async def test_error_for_a_missing_browser_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMMANDS", ("no-such-browser",))
    with pytest.raises(ConfigError, match="NAME: needs Chromium; .*apt-get install chromium"):
        async with own_page(NOWHERE.url):
            raise AssertionError("it is shown")


async def test_browser_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [
        "#!/bin/sh",
        "trap '' TERM",
        f"echo $$ >{tmp_path}/pid",
        "for folder; do :; done",  # the last argument
        "printf '1\\n/\\n' >${folder#--user-data-dir=}/DevToolsActivePort",
        "while :; do sleep 0.1; done",
    ]
    hanging = tmp_path / "hanging"
    hanging.write_text("\n".join(lines))
    hanging.chmod(0o755)
    monkeypatch.setattr(module, "_COMMANDS", (str(hanging),))
    monkeypatch.setattr(module, "_STOP_S", 0.05)
    with pytest.raises(LoadError, match="no answer from http://127.0.0.1:1"):
        async with own_page(NOWHERE.url):
            raise AssertionError("it is shown")
    assert not is_alive(int((tmp_path / "pid").read_text()))
