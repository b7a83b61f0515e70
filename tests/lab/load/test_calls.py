"""Requests to a scripted server."""

from __future__ import annotations

import socket

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.load.answers import read_answer
from sluiceway_lab.load.calls import Call, Target, get, record
from sluiceway_lab.load.replies import LoadError
from support.scripted_http import STALL, completion_stream, plain, scripted_server


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000)),
        ("http://127.0.0.1:8000/v1/", Target("127.0.0.1", 8000)),
        ("http://[::1]:1/", Target("::1", 1)),
        ("https://host.example/api/v1", Target("host.example", 443, True, "/api")),
        ("http://host.example", Target("host.example", 80)),
    ],
)
def test_address_is_read(url: str, target: Target) -> None:
    assert Target.parse(url) == target
    assert Target.parse(target.url) == target


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_address_is_refused_when_it_is_none(url: str) -> None:
    with pytest.raises(ConfigError, match="^vs: "):
        Target.parse(url, flag="vs")


def test_request_is_whole() -> None:
    head, _, body = Target("h", 1, root="/api", api_key="k").request("POST", "/v1/x", {"a": 1}).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /api/v1/x HTTP/1.1" and body == b'{"a":1}'
    assert {"Host: h:1", "Connection: close", "Content-Length: 7", "Authorization: Bearer k"} <= set(lines)
    assert b"Content-Length" not in Target("h", 1).request("GET", "/")


async def test_answer_is_recorded_to_its_end() -> None:
    async with scripted_server({"/v1/completions": completion_stream(8)}) as server:
        recording = await record(server.target, server.target.request("POST", "/v1/completions", {"stream": True}))
    times = [recording.started_s, *(at_s for at_s, _ in recording.reads), recording.ended_s]
    assert times == sorted(times)
    assert read_answer(recording).n_tokens == 8
    (path, headers, body), *_ = server.requests
    assert (path, headers["connection"], body) == ("/v1/completions", "close", {"stream": True})


async def test_call_fails_if_no_server_listens() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        target = Target("127.0.0.1", unheard.getsockname()[1])
        with pytest.raises(LoadError, match=f"no answer from {target.url}"):
            await get(target, "/")


async def test_call_fails_and_leaves_when_the_answer_stalls() -> None:
    async with scripted_server({"/": [plain(200, b"abc")[:-1], STALL]}) as server:
        with pytest.raises(LoadError, match=r"has not ended after 0.05 s"):
            await record(server.target, server.target.request("GET", "/"), limit_s=0.05)
        assert server.requests


async def test_small_answer_is_whole_or_a_fault() -> None:
    async with scripted_server({"/good": [plain(200, b"abc")], "/cut": [plain(200, b"abc")[:-1]]}) as server:
        assert (await get(server.target, "/good")).body == b"abc"
        assert (await get(server.target, "/none")).status == 404
        with pytest.raises(LoadError, match="/cut broke off"):
            await get(server.target, "/cut")


async def test_reader_can_leave_in_the_middle() -> None:
    async with scripted_server({"/": [*completion_stream(8)[:3], STALL]}) as server:
        call = await Call.open(server.target, server.target.request("GET", "/"))
        while call.n_reads < 1:
            await get(server.target, "/none")
        assert not call.is_over
        call.leave()
        recording = await call.end()
        call.leave()
        assert recording.n_bytes > 0
