"""The configuration of nginx, and its start and end."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load import nginx as module
from sluiceway_lab.load.client import LoadError, Target, get
from sluiceway_lab.load.nginx import ProxyRules, own_proxy
from support.scripted_http import plain, scripted_server
from support.system import needs_nginx
from support.target_servers import NOWHERE


def test_rules_are_those_of_nginx_where_nothing_is_said() -> None:
    assert ProxyRules().directives.split(";\n            ") == [
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
