"""Servers of several kinds, and their metrics."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from sluiceway.obs.metrics import Metrics
from sluiceway_lab.load.client import LoadError, Reply, Target, get
from sluiceway_lab.load.target_server import kind_of, meet, n_busy, parse_samples, total
from support.scripted_http import Answering, Pieces, completion_stream, plain, scripted_server

MODELS = plain(200, b'{"object":"list","data":[{"id":"first"},{"id":"second"}]}')
LLAMA_CPP = plain(200, b"llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\n", "text/plain")

Routes = dict[str, Pieces | Answering]
VLLM_METRICS = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
"""
LLAMA_CPP_METRICS = """# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
llamacpp:prompt_tokens_seconds nan
"""


def routes(**more: Pieces | Answering) -> Routes:
    """A server that understands every field."""
    return {"/v1/models": [MODELS], "/v1/completions": completion_stream(1)} | {
        f"/{key}": at for key, at in more.items()
    }


def only_knows(*fields: str) -> Answering:
    """Refuses fields that are not among these."""

    def answer(body: Any) -> Pieces:
        strange = {"ignore_eos", "stream_options"} & body.keys() - set(fields)
        return (
            [plain(400, json.dumps({"error": {"message": f"{strange}?"}}).encode())]
            if strange
            else completion_stream(1)
        )

    return answer


async def test_llama_cpp_is_recognized() -> None:
    async with scripted_server(routes(metrics=[LLAMA_CPP], props=[plain(200, b'{"build_info":"b1-abc"}')])) as script:
        server = await meet(script.target)
        assert (server.name, server.kind, server.version, server.model) == (
            "llama.cpp",
            "llama.cpp",
            "b1-abc",
            "first",
        )
        assert server.extras == {"ignore_eos": True, "stream_options": {"include_usage": True}}
        assert not await server.is_idle()
        facts = server.facts()
        assert (facts.url, facts.serve_flags) == (script.target.url, None)


async def test_optional_pages_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page is broken, one never comes, one is an error."""

    async def get_soon(target: Target, path: str) -> Reply:
        return await get(target, path, 0.1 if path == "/version" else 10.0)

    monkeypatch.setattr("sluiceway_lab.load.target_server.get", get_soon)
    async with scripted_server(routes(metrics=[b"no"], version=[b""], props=[plain(500, b"no")])) as script:
        server = await meet(script.target)
    assert (server.kind, server.version) == (None, None)


async def test_vllm_is_recognized() -> None:
    gauges = plain(200, b'vllm:num_requests_running{engine="0"} 0.0\n', "text/plain")
    async with scripted_server(routes(metrics=[gauges], version=[plain(200, b'{"version":"0.32.0"}')])) as script:
        server = await meet(script.target)
        assert (server.kind, server.version) == ("vllm", "0.32.0")
        assert await server.is_idle()


async def test_other_server_has_its_address_for_a_name() -> None:
    pages: Routes = {"props": [plain(200, b"<html>")], "version": [plain(200, b"[]")]}
    async with scripted_server(routes(**pages)) as script:
        server = await meet(script.target, model="mine")
        assert (server.name, server.kind, server.version, server.model) == (script.target.url, None, None, "mine")
        assert await server.samples() == {} and server.usages() == {}


async def test_our_server_names_its_processes() -> None:
    gauges = plain(200, b"sluiceway_requests_running 0\nsluiceway_requests_waiting 0\n", "text/plain")
    stats = plain(200, json.dumps({"processes": {"api": os.getpid()}}).encode())
    async with scripted_server(routes(metrics=[gauges], stats=[stats])) as script:
        server = await meet(script.target)
        assert server.processes == {os.getpid(): "api"}
        assert server.usages()["api"].rss_bytes > 0
        assert (await meet(script.target, pid=os.getppid())).processes[os.getppid()] == "supervisor"
        elsewhere = await meet(Target("localhost", script.port))
        assert elsewhere.processes == server.processes


async def test_the_children_of_another_server_are_found_by_its_pid() -> None:
    async with scripted_server(routes()) as script:
        server = await meet(script.target, pid=os.getpid())
        assert os.getpid() in server.processes


async def test_process_that_is_not_there_is_refused() -> None:
    async with scripted_server(routes()) as script:
        with pytest.raises(LoadError, match="there is no process 4194305 on this machine"):
            await meet(script.target, pid=2**22 + 1)


@pytest.mark.parametrize(
    ("known", "extras"),
    [
        (["stream_options"], {"stream_options": {"include_usage": True}}),
        (["ignore_eos"], {"ignore_eos": True}),
        ([], {}),
    ],
)
async def test_extras_are_left_out_when_they_are_refused(known: list[str], extras: dict[str, Any]) -> None:
    async with scripted_server(routes() | {"/v1/completions": only_knows(*known)}) as script:
        assert (await meet(script.target)).extras == extras


async def test_request_carries_the_extras_and_leaves_out_what_is_none() -> None:
    async with scripted_server(routes()) as script:
        server = await meet(script.target)
        _, _, raw = server.request("p", 3, stream=False, stream_options=None).partition(b"\r\n\r\n")
    body = {"model": "first", "prompt": "p", "max_tokens": 3, "temperature": 0, "stream": False, "ignore_eos": True}
    assert json.loads(raw) == body


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({"/v1/models": [plain(401, b'{"error":{"message":"no key"}}')]}, r"refused \(401\): no key"),
        ({"/v1/models": [plain(200, b"{}")]}, "not a list of models"),
        ({"/v1/models": [plain(200, b'{"data":[]}')]}, "lists no model"),
        ({"/v1/completions": [plain(500, b"oh")]}, r"completions is refused \(500\): oh"),
        ({"/v1/completions": [plain(400, b"never")]}, r"completions is refused \(400\): never"),
    ],
)
async def test_server_is_refused_when_it_cannot_be_measured(pages: Routes, words: str) -> None:
    async with scripted_server(routes() | pages) as script:
        with pytest.raises(LoadError, match=words):
            await meet(script.target)


def test_process_ids_of_another_machine_mean_nothing_here() -> None:
    from sluiceway_lab.load.target_server import _is_here

    assert [_is_here(host) for host in ("127.0.0.9", "::1", "localhost")] == [True] * 3
    assert [_is_here(host) for host in ("192.0.2.1", "host.example")] == [False] * 2


def test_samples_are_read_with_their_labels() -> None:
    samples = parse_samples(VLLM_METRICS + "odd{} lines\nbare 1e3 # {} 7\n")
    assert samples["bare", ""] == 1000.0
    assert samples["vllm:num_requests_running", '{engine="1",model_name="m"}'] == 1.0
    assert len(samples) == 4


def test_total_is_over_all_labels() -> None:
    samples = parse_samples(VLLM_METRICS)
    assert (total(samples, "vllm:num_requests_running"), total(samples, "none")) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("text", "kind", "busy"),
    [
        (VLLM_METRICS, "vllm", 7.0),
        (LLAMA_CPP_METRICS, "llama.cpp", 1.0),
        (Metrics().render().decode(), "sluiceway", 0.0),
    ],
)
def test_server_is_known_by_its_gauges(text: str, kind: str, busy: float) -> None:
    samples = parse_samples(text)
    assert kind_of(samples) == kind and n_busy(kind, samples) == busy


def test_other_server_is_unknown() -> None:
    assert kind_of(parse_samples("up 1\n")) is None
