"""nginx and the relay, in front of scripted servers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load import proxies as module
from sluiceway_lab.load.client import LoadError, Target, get, record
from sluiceway_lab.load.proxies import Cut, ProxyRules, own_proxy, relay
from support.scripted_http import STALL, ScriptedServer, plain, scripted_server
from support.system import needs_nginx
from support.target_servers import NOWHERE

BODY = b"0123456789" * 50


def test_rules_are_those_of_nginx_where_nothing_is_said() -> None:
    assert ProxyRules().directives.split(";\n    ") == [
        "proxy_http_version 1.0",
        "proxy_buffering on",
        "proxy_read_timeout 60000ms",
        "send_timeout 60000ms;",
    ]


def test_rules_can_take_the_last_word_from_the_server() -> None:
    rules = ProxyRules(buffers=False, heeds_header=False, read_timeout_s=0.5)
    assert "proxy_buffering off;" in rules.directives
    assert "proxy_read_timeout 500ms;" in rules.directives
    assert rules.directives.endswith("proxy_ignore_headers X-Accel-Buffering;")


@needs_nginx
async def test_server_is_found_behind_it_and_it_leaves_nothing() -> None:
    async with scripted_server({"/health": [plain(200, b"{}")]}) as script:
        with own_proxy(script.target) as target:
            assert target.port != script.target.port
            assert (await get(target, "/health")).body == b"{}"
            assert (await get(target, "/else")).status == 404
            root = await get(target, "/")
            assert root.headers["content-type"] == "text/html" and b"<!doctype html>" in root.body
            assert {path for path, _, _ in script.requests} == {"/health", "/else"}
        with pytest.raises(LoadError):
            await get(target, "/")


@needs_nginx
async def test_nginx_that_does_not_start_says_why() -> None:
    with pytest.raises(LoadError, match="nginx does not start: .*invalid value"):
        with own_proxy(NOWHERE, ProxyRules(read_timeout_s=-1)):
            raise AssertionError("it runs")


def test_server_that_speaks_tls_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be http"):
        with own_proxy(replace(NOWHERE, is_tls=True)):
            raise AssertionError("it runs")


def test_error_for_a_missing_nginx_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "nginx_command", lambda: None)
    with pytest.raises(ConfigError, match="NAME: needs nginx; .*apt-get install nginx-light"):
        with own_proxy(NOWHERE):
            raise AssertionError("it runs")


def test_nginx_is_found_where_only_root_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nginx = tmp_path / "nginx"
    nginx.write_text("#!/bin/sh\n")
    nginx.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.nginx_command() == str(nginx)


@needs_nginx
@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
async def test_server_with_an_address_of_version_six_is_found() -> None:
    with own_proxy(Target("::1", 1)) as target:
        assert (await get(target, "/health")).status == 502


async def body_through(script: ScriptedServer, cut: Cut | None) -> bytes:
    lines: list[str] = []

    def choose(line: str) -> Cut | None:
        lines.append(line)
        return cut

    async with relay(script.target, choose) as between:
        request = between.request("GET", "/long")
        reply = (await record(between, request, 10.0)).reply()
    assert lines == ["GET /long HTTP/1.1"]
    return reply.body


async def test_answer_goes_through_whole_where_it_is_not_cut() -> None:
    async with scripted_server({"/long": [plain(200, BODY)]}) as script:
        assert await body_through(script, None) == BODY
        assert await body_through(script, Cut(len(BODY) + 1, resets=False)) == BODY


@pytest.mark.parametrize("n_bytes", [1, 10, 499])
async def test_answer_is_cut_after_the_given_bytes(n_bytes: int) -> None:
    async with scripted_server({"/long": [plain(200, BODY)]}) as script:
        assert await body_through(script, Cut(n_bytes, resets=False)) == BODY[:n_bytes]


async def test_reset_is_felt_as_one() -> None:
    async with scripted_server({"/long": [plain(200, BODY)]}) as script:
        async with relay(script.target, lambda line: Cut(100, resets=True)) as between:
            reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
            writer.write(between.request("GET", "/long"))
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 10.0)
                await asyncio.wait_for(reader.read(), 10.0)
            writer.close()


async def test_server_is_left_when_its_client_leaves() -> None:
    async with scripted_server({"/long": [b"HTTP/1.1 200 OK\r\n\r\n", b"once", STALL]}) as script:
        async with relay(script.target, lambda line: None) as between:
            reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
            writer.write(between.request("GET", "/long"))
            assert await asyncio.wait_for(reader.readuntil(b"once"), 10.0)
            writer.close()
            await asyncio.wait_for(asyncio.gather(*script.answering), 10.0)


async def test_client_is_left_when_its_server_breaks_off() -> None:
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    async with scripted_server({"/long": [b"HTTP/1.1 200"]}) as script:
        async with relay(script.target, lambda line: None) as between:
            reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
            writer.write(between.request("GET", "/long"))
            assert await asyncio.wait_for(reader.read(), 10.0) == b""
            writer.close()
    assert faults == []


async def test_client_is_disconnected_if_no_server_listens() -> None:
    async with scripted_server({}) as script:
        nowhere = script.target
    async with relay(nowhere, lambda line: None) as between:
        reader, writer = await asyncio.open_connection("127.0.0.1", between.port)
        writer.write(between.request("GET", "/long"))
        assert await asyncio.wait_for(reader.read(), 10.0) == b""
        writer.close()
