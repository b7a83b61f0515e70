"""An endpoint is one value: no other code has to know its path."""

from __future__ import annotations

import dataclasses
import gc

import pytest

from sluiceway.errors import Refusal
from sluiceway.protocols.common.generation import Endpoint
from sluiceway.protocols.common.reading import PromptRoom, job_head, read_result
from sluiceway.protocols.endpoints import ENDPOINTS, build
from sluiceway.protocols.native.requests import GENERATE
from support.asgi_driver import Api, fetch


def tiny_error(refusal: Refusal) -> bytes:
    return f"tiny: {refusal.code}".encode()


TINY = dataclasses.replace(GENERATE, path="/v1/tiny", id_prefix="tiny", error_body=tiny_error)
BODY = b'{"prompt": "hi", "max_tokens": 4}'


def test_every_path_has_one_endpoint() -> None:
    assert len({endpoint.path for endpoint in ENDPOINTS}) == len(ENDPOINTS)


@pytest.fixture(name="api")
def fixture_api() -> Api:
    api = Api(endpoints=(*ENDPOINTS, TINY))
    api.upstream.script = ["hi"]
    return api


async def test_an_endpoint_in_the_registry_is_served(api: Api) -> None:
    answer = await fetch(api.app, "POST", TINY.path, BODY)
    assert answer.status == 200 and answer.json()["id"].startswith("tiny-")
    api.assert_quiet()


async def test_a_worker_finds_an_endpoint_by_its_path(api: Api) -> None:
    answer = await fetch(api.app, "POST", TINY.path, b'{"prompt": [%b1]}' % (b"1," * 5000))
    assert api.worker.n_jobs == 1 and answer.status == 400
    assert answer.body == b"tiny: context_length_exceeded"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_the_worker_process_knows_every_endpoint(endpoint: Endpoint) -> None:
    chat = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    body = chat if "chat" in endpoint.path else b'{"model": "m", "prompt": "hi"}'
    try:
        assert read_result(build(b"m")(job_head(endpoint, PromptRoom()) + body)).n_choices == 1
    finally:
        gc.enable()  # `build` has disabled it for the worker process


@pytest.mark.parametrize(
    ("method", "body", "headers", "status", "code"),
    [
        ("POST", b"{", {}, 400, b"invalid_json"),
        ("POST", b'{"prompt": ""}', {}, 400, b"invalid_value"),
        ("POST", b'{"prompt": "hi", "model": "x"}', {}, 404, b"model_not_found"),
        ("GET", b"", {}, 405, b"method_not_allowed"),
        ("POST", BODY, {"content_type": "text/plain"}, 400, b"unsupported_media_type"),
        ("POST", BODY, {"host": "elsewhere.example"}, 421, b"wrong_host"),
        ("POST", b"x" * (17 << 20), {}, 413, b"body_too_large"),
    ],
)
async def test_every_refusal_on_a_path_has_the_error_body_of_its_endpoint(
    api: Api, method: str, body: bytes, headers: dict[str, str], status: int, code: bytes
) -> None:
    answer = await fetch(api.app, method, TINY.path, body, **headers)
    assert (answer.status, answer.body) == (status, b"tiny: " + code)


async def test_an_error_of_the_server_itself_has_the_error_body_of_the_endpoint() -> None:
    def fail(body: bytes, served_name: str) -> None:
        raise ValueError("broken")

    broken = dataclasses.replace(TINY, parser=fail)  # type: ignore[arg-type]
    answer = await fetch(Api(endpoints=(broken,)).app, "POST", TINY.path, BODY)
    assert (answer.status, answer.body) == (500, b"tiny: internal_error")


async def test_other_paths_have_the_error_body_of_openai(api: Api) -> None:
    answer = await fetch(api.app, "POST", "/v1/elsewhere")
    assert answer.status == 404 and answer.json()["error"]["code"] == "not_found"
