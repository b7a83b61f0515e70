"""The routes of the application, and unknown paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluiceway.ipc.messages.to_child import Role
from sluiceway.sse.decoder import EventDecoder
from support.asgi_driver import MODEL, Api, AsgiDriver, chat, completion, fetch


@pytest.fixture
def api() -> Api:
    api = Api()
    api.upstream.script = ["Hello"]
    return api


def error_of(driver: AsgiDriver) -> dict[str, Any]:
    error: dict[str, Any] = driver.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "x-request-id" in driver.headers
    return error


async def test_chat_is_answered(api: Api) -> None:
    """The answer has an id, the served name and the time."""
    answer = (await fetch(api.app, "POST", "/v1/chat/completions", chat())).json()
    assert answer["choices"][0]["message"]["content"] == "Hello"
    assert answer["id"].startswith("chatcmpl-") and answer["model"] == MODEL and answer["created"] == 1_700_000_000


async def test_a_completion_is_answered(api: Api) -> None:
    """Each answer has another id."""
    answers = [(await fetch(api.app, "POST", "/v1/completions", completion())).json() for _ in range(2)]
    assert answers[0]["choices"][0]["text"] == "Hello"
    assert all(answer["id"].startswith("cmpl-") for answer in answers) and answers[0]["id"] != answers[1]["id"]


async def test_a_native_request_is_answered_by_its_path(api: Api) -> None:
    """`/v1/stream` sends an event for each token, `/v1/generate` a whole answer. Both have the id of their stream."""
    body = json.dumps({"prompt": "Hi", "stream_id": "mine"}).encode()
    plain = await fetch(api.app, "POST", "/v1/generate", body)
    assert (plain.json()["text"], plain.json()["id"], plain.headers["x-stream-id"]) == ("Hello", "mine", "mine")
    streamed = await fetch(api.app, "POST", "/v1/stream", b'{"prompt": "Hi"}', x_stream_id="yours")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [(event.event, json.loads(event.data)) for event in EventDecoder().feed(streamed.body)]
    assert [name for name, _ in events] == ["start", "token", "done"]
    start, token, done = (data for _, data in events)
    assert (start["id"], start["model"], start["prompt_tokens"]) == ("yours", MODEL, 5)
    assert token == {"index": 0, "id": 0, "text": "Hello"}
    assert done["reason"] == "stop" and done["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("path", "prefix"),
    [
        ("/v1/chat/completions", "chatcmpl-"),
        ("/v1/completions", "cmpl-"),
        ("/v1/generate", "stream-"),
    ],
)
async def test_an_answer_has_the_id_of_its_stream(api: Api, path: str, prefix: str) -> None:
    """A client without access to headers can cancel it and ask about it."""
    body = {"/v1/chat/completions": chat(), "/v1/completions": completion()}.get(path, b'{"prompt": "Hi"}')
    answer = await fetch(api.app, "POST", path, body)
    stream_id = answer.json()["id"]
    assert stream_id.startswith(prefix) and answer.headers["x-stream-id"] == stream_id
    assert (await fetch(api.app, "GET", f"/v1/streams/{stream_id}")).json()["reason"] == "stop"
    chosen = await fetch(api.app, "POST", path, body, x_stream_id="mine")
    assert chosen.json()["id"] == chosen.headers["x-stream-id"] == "mine"


async def test_an_invalid_id_is_refused(api: Api) -> None:
    """The error names the header."""
    error = error_of(await fetch(api.app, "POST", "/v1/completions", completion(), x_stream_id="a/b"))
    assert (error["code"], error["param"]) == ("invalid_value", "x-stream-id")


def native(**fields: Any) -> bytes:
    return json.dumps({"prompt": "Hello"} | fields).encode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat),
        ("/v1/completions", completion),
        ("/v1/stream", native),
        ("/v1/generate", native),
    ],
)
async def test_another_model_is_not_found(api: Api, path: str, body: Any) -> None:
    """Its name makes no new series in the metrics."""
    error = error_of(await fetch(api.app, "POST", path, body(model="other")))
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert not api.upstream.pushed
    assert b"other" not in api.metrics.render()


async def test_models_are_listed(api: Api) -> None:
    """The list has the served model, which also has a card."""
    listed = (await fetch(api.app, "GET", "/v1/models")).json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == [MODEL]
    assert (await fetch(api.app, "GET", f"/v1/models/{MODEL}")).json() == listed["data"][0]
    assert listed["data"][0]["max_model_len"] == 200


@pytest.mark.parametrize("name", ["org/other", "x", MODEL + "/"])
async def test_the_card_of_another_model_is_not_found(api: Api, name: str) -> None:
    """Names may have slashes."""
    assert error_of(await fetch(api.app, "GET", f"/v1/models/{name}"))["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}", "/health", "/health/ready"])
async def test_the_server_is_live_but_not_ready_while_the_model_is_loaded(path: str) -> None:
    api = Api(is_serving=False)
    driver = await fetch(api.app, "GET", path)
    assert driver.status == 503 and error_of(driver)["code"] == "model_loading" and driver.headers["retry-after"] == "1"
    assert (await fetch(api.app, "GET", "/health/live")).status == 200


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/health/live"])
async def test_the_server_is_healthy_when_it_serves(api: Api, path: str) -> None:
    assert (await fetch(api.app, "GET", path)).status == 200


async def test_the_server_is_live_but_not_ready_when_the_engine_is_down(api: Api) -> None:
    """An orchestrator must not restart a server that restarts its processes itself."""
    api.dispatcher.peer_down(Role.ENGINE, hung=False)
    assert (await fetch(api.app, "GET", "/health/ready")).status == 503
    assert (await fetch(api.app, "GET", "/health/live")).status == 200


async def test_metrics_and_stats_are_served(api: Api) -> None:
    """Metrics are Prometheus text, stats are JSON."""
    metrics = await fetch(api.app, "GET", "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"sluiceway_requests_running 0.0" in metrics.body
    api.upstream.is_gone = True
    stats = (await fetch(api.app, "GET", "/stats")).json()
    assert stats["clean"] and stats["stale"] and stats["processes"] == {"api": 1}


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/nothing", "/v1/completions/", "//v1/completions", "/V1/models", "/docs", "/openapi.json"]
)
async def test_an_unknown_path_is_not_found(api: Api, path: str) -> None:
    """The answer is in the envelope."""
    for method in ("GET", "POST"):
        driver = await fetch(api.app, method, path)
        assert driver.status == 404 and error_of(driver)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/V1/models", "/v1/models"),
        ("/api/generate", "/v1/generate"),
        ("/api/chat", "/v1/chat/completions"),
        ("/v1/stats", "/stats"),
        ("/models", "/v1/models"),
    ],
)
async def test_the_path_that_was_probably_meant_is_named(api: Api, path: str, meant: str) -> None:
    driver = await fetch(api.app, "POST", path)
    assert f"did you mean `{meant}`?" in error_of(driver)["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [("/v1/chat/completions/chat/completions", "/v1/chat/completions"), ("/v1/completions/models", "/v1/models")],
)
async def test_a_path_below_another_one_shows_a_wrong_base_url(api: Api, path: str, meant: str) -> None:
    """A client with the whole path as its base appends its own."""
    message = error_of(await fetch(api.app, "POST", path))["message"]
    assert f"did you mean `{meant}`? The base_url of a client must end in `/v1`." in message


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/responses", "/v1/chat/completions"),
        ("/v1/messages", "/v1/chat/completions"),
        ("/v1/embeddings", "/v1/completions"),
        ("/v1/nothing/of/this", "/v1/chat/completions"),
        ("/responses", "/v1/chat/completions"),
        ("/api/tags", "/v1/models"),
        ("/api/version", "/v1/models"),
        ("/version", "/v1/models"),
        ("/props", "/v1/models"),
        ("/tokenize", "usage"),
    ],
)
async def test_the_path_of_another_server_gets_a_hint(api: Api, path: str, nearest: str) -> None:
    """The nearest path of this server is named."""
    message = error_of(await fetch(api.app, "GET", path))["message"]
    assert f'"{path}" is not served' in message and nearest in message and "below" not in message


async def test_models_with_a_final_slash_is_meant_as_the_list(api: Api) -> None:
    error = error_of(await fetch(api.app, "GET", "/v1/models/"))
    assert error["code"] == "not_found" and "did you mean `/v1/models`?" in error["message"]


@pytest.mark.parametrize("path", ["/", "/v1", "/nothing", "/" + "x" * 60_000])
async def test_an_ambiguous_path_gets_a_hint(api: Api, path: str) -> None:
    assert "below `/v1`" in error_of(await fetch(api.app, "GET", path))["message"]


async def test_unknown_paths_and_methods_are_logged(api: Api) -> None:
    """The log shortens them, and has no control characters."""
    await fetch(api.app, "GET", "/no\n\x1b" + "x" * 1000)
    await fetch(api.app, "GET", "/v1/completions")
    rejected = [line for line in api.lines if line["event"] == "rejected"]
    lines = [(line["reason"], line["status"], line["method"]) for line in rejected]
    assert lines == [("not_found", 404, "GET"), ("method_not_allowed", 405, "GET")]
    assert len(rejected[0]["path"]) < 200 and rejected[0]["path"].isprintable()


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", {"POST"}),
        ("HEAD", "/v1/chat/completions", {"POST"}),
        ("OPTIONS", "/v1/completions", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("DELETE", f"/v1/models/{MODEL}", {"GET", "HEAD"}),
        ("PUT", "/health/live", {"GET", "HEAD"}),
        ("POST", "/metrics", {"GET", "HEAD"}),
    ],
)
async def test_another_method_is_not_allowed(api: Api, method: str, path: str, allow: set[str]) -> None:
    """The answer names the allowed one."""
    driver = await fetch(api.app, method, path)
    assert driver.status == 405 and error_of(driver)["code"] == "method_not_allowed"
    assert set(driver.headers["allow"].split(", ")) == allow


async def test_preflight_of_cors_is_not_served(api: Api) -> None:
    """A plain OPTIONS gets the usual message."""
    page = "http://localhost:5173"
    plain = await fetch(api.app, "OPTIONS", "/v1/chat/completions", origin=page)
    preflight = await fetch(
        api.app, "OPTIONS", "/v1/chat/completions", origin=page, access_control_request_method="POST"
    )
    for driver, is_preflight in ((plain, False), (preflight, True)):
        assert driver.status == 405 and driver.headers["allow"] == "POST"
        assert ("CORS preflights are not served" in error_of(driver)["message"]) is is_preflight


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/health/live", "/metrics", "/stats"])
async def test_head_is_served_where_get_is(api: Api, path: str) -> None:
    api.upstream.is_gone = True
    driver = await fetch(api.app, "HEAD", path)
    assert driver.status == 200 and int(driver.headers["content-length"]) > 0


async def test_a_page_of_another_site_cannot_read_answers(api: Api) -> None:
    """No header allows it."""
    driver = await fetch(api.app, "GET", "/v1/models", origin="https://evil.example")
    assert not [name for name in driver.headers if name.startswith("access-control")]


async def test_answers_are_never_compressed(api: Api) -> None:
    """A compressor would hold events back."""
    driver = await fetch(api.app, "POST", "/v1/completions", completion(stream=True), accept_encoding="gzip, br")
    assert "content-encoding" not in driver.headers
    assert json.loads(driver.events[0])["object"] == "text_completion"
