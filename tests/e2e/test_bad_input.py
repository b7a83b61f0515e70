"""A wrong request gets a 4xx that names the field, never reaches the engine, and leaves the server able to serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.raw_http import RawConnection
from support.requests import CHAT, COMPLETIONS, completion, error_of, served_name
from support.server import Server, wait_until

HUGE = 10**30
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def untouched(fake: Server) -> Iterator[Server]:
    """The shared server. After the test its engine must have received nothing, and the server must serve."""
    accepted = fake.stats()["engine"]["accepted_total"]
    yield fake
    assert fake.stats()["engine"]["accepted_total"] == accepted
    assert fake.post(COMPLETIONS, completion(fake, n_tokens=1))[0] == 200


def refuse(server: Server, path: str, body: bytes | object, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The error with which this request is refused; `status` is added to it."""
    with server.connect() as connection:
        connection.request("POST", path, body, headers)
        answer = connection.read_answer()
    assert 400 <= answer.status < 500, answer
    assert answer.headers["content-type"].startswith("application/json")
    error = error_of(answer.json())
    assert error["type"] == "invalid_request_error"
    assert "Traceback" not in error["message"] and "/src/" not in error["message"]
    return error | {"status": answer.status}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": "x",}',
        b"null",
        b"[]",
        b'"text"',
        b"17",
        b"\xff\xfe\x00",
        b"\x00" * 100,
        b'{"model": "\x00"}',
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"messages": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
    ],
    ids=[
        "empty",
        "cut",
        "comma",
        "null",
        "list",
        "string",
        "number",
        "no-utf8",
        "nulls",
        "null-byte",
        "deep-lists",
        "deep-objects",
        "deep-field",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(untouched: Server, path: str, body: bytes) -> None:
    """The error is ours: neither the framework's 422 nor a 500."""
    assert refuse(untouched, path, body)["status"] == 400


NUMBERS: list[tuple[str, object]] = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", HUGE),
    ("temperature", "warm"),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_p", [0.5]),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -1),
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("max_tokens", 1.5),
    ("max_tokens", "10"),
    ("max_tokens", True),
    ("n", 0),
    ("n", -1),
    ("n", 100_000),
    ("n", "two"),
    ("seed", "x"),
    ("seed", 1.5),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3),
    ("logit_bias", {"abc": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"5": 1000}),
    ("logit_bias", [1]),
    ("stop", [""]),
    ("stop", ["a"] * 1000),
    ("stop", [1]),
    ("stop", {"a": 1}),
    ("stream", "yes"),
    ("stream", 2),
    ("stream_options", {"include_usage": True}),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [HUGE]),
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("field", "value"), NUMBERS, ids=lambda value: repr(value)[:24])
def test_a_value_out_of_range_or_of_the_wrong_type_is_refused(
    untouched: Server, path: str, field: str, value: object
) -> None:
    """400, and `param` is the field (or a part of it)."""
    error = refuse(untouched, path, minimal(untouched, path) | {field: value})
    assert error["status"] == 400
    assert_names(error, field)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 5000])
@pytest.mark.parametrize("field", ["temperature", "top_p", "max_tokens", "seed", "presence_penalty"])
def test_a_number_that_is_not_json_is_refused(untouched: Server, field: str, literal: str) -> None:
    """Python's own parser accepts most of them."""
    name = served_name(untouched)
    raw = f'{{"model": "{name}", "prompt": "a", "max_tokens": 1, "{field}": {literal}}}'
    assert refuse(untouched, COMPLETIONS, raw.encode())["status"] == 400


def minimal(server: Server, path: str) -> dict[str, Any]:
    """The smallest valid body for this endpoint, for one token."""
    prompt = {"messages": [USER]} if path == CHAT else {"prompt": "hi"}
    return {"model": served_name(server), "max_tokens": 1} | prompt


def assert_names(error: dict[str, Any], field: str) -> None:
    assert error["param"] and error["param"].split(".")[0].split("[")[0] == field, error


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        {},
        [None],
        ["hi"],
        [[]],
        [{}],
        [{"role": "user"}],
        [{"content": "hi"}],
        [{"role": "wizard", "content": "hi"}],
        [{"role": 1, "content": "hi"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}],
        [{"role": "user", "content": [{"type": "dance"}]}],
        [{"role": "user", "content": [{"text": "no type"}]}],
        [USER, {"role": "user", "content": {"text": "hi"}}],
    ],
    ids=lambda value: repr(value)[:40],
)
def test_messages_that_are_not_a_conversation_are_refused(untouched: Server, messages: object) -> None:
    """Parts that the model cannot read are refused, not ignored."""
    error = refuse(untouched, CHAT, minimal(untouched, CHAT) | {"messages": messages})
    assert error["status"] == 400
    assert_names(error, "messages")


@pytest.mark.parametrize(
    "prompt",
    [None, [], {}, 5, [""], [[]], [["a"]], [1, "a"], [-1], [HUGE], [1.5], [True], [[1], "a"], [None]],
    ids=repr,
)
def test_invalid_prompts_are_refused(untouched: Server, prompt: object) -> None:
    """A prompt is a text, a list of texts, token ids, or a list of lists of token ids, and not empty."""
    error = refuse(untouched, COMPLETIONS, minimal(untouched, COMPLETIONS) | {"prompt": prompt})
    assert error["status"] == 400
    assert_names(error, "prompt")


@pytest.mark.parametrize("missing", ["model", "prompt"])
def test_a_missing_field_is_named(untouched: Server, missing: str) -> None:
    """The error says what to add."""
    body = minimal(untouched, COMPLETIONS)
    del body[missing]
    assert_names(refuse(untouched, COMPLETIONS, body), missing)


@pytest.mark.parametrize(
    "model", ["", "no/such", "../../etc/passwd", "x" * 100_000, 5, None, ["a"]], ids=lambda m: repr(m)[:20]
)
def test_a_model_that_is_not_served_is_refused(untouched: Server, model: object) -> None:
    """404 for an unknown name, 400 for a value that is not a name."""
    error = refuse(untouched, COMPLETIONS, minimal(untouched, COMPLETIONS) | {"model": model})
    assert_names(error, "model")
    assert error["status"] == (404 if isinstance(model, str) and model else error["status"])
    assert len(error["message"]) < 2000


@pytest.mark.parametrize("unit", ["a", "^", "\n", "😀", "a b "])
def test_an_enormous_prompt_is_refused(untouched: Server, unit: str) -> None:
    """Five million characters are too long for any context; every process survives them."""
    repeats = 5_000_000 // len(unit) if unit.isascii() else 1_000_000
    error = refuse(untouched, COMPLETIONS, minimal(untouched, COMPLETIONS) | {"prompt": unit * repeats})
    assert (error["status"], error["code"]) in [(400, "context_length_exceeded"), (413, "body_too_large")]
    assert error["status"] == 413 or error["param"] in ("prompt", "messages")


def test_an_enormous_message_is_refused(untouched: Server) -> None:
    """The same text as a chat message."""
    error = refuse(
        untouched, CHAT, minimal(untouched, CHAT) | {"messages": [{"role": "user", "content": "a" * 5_000_000}]}
    )
    assert (error["status"], error["code"]) == (400, "context_length_exceeded")
    assert error["param"] in ("prompt", "messages")


def test_a_lone_surrogate_is_refused(untouched: Server) -> None:
    """JSON can write half of a surrogate pair; a text cannot contain it."""
    name = served_name(untouched)
    raw = f'{{"model": "{name}", "max_tokens": 1, "prompt": "a\\ud800b"}}'
    assert refuse(untouched, COMPLETIONS, raw.encode())["status"] == 400


@pytest.mark.parametrize(
    "text", ["\x00", "a\x00b", "\ufeff", "\u202e", "\uffff", "\u2028", " ", "<|im_end|>"], ids=ascii
)
def test_an_unusual_character_is_ordinary_text(fake: Server, text: str) -> None:
    """Null bytes, combining marks and noncharacters are accepted."""
    for path, prompt in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]})):
        assert fake.post(path, minimal(fake, path) | prompt)[0] == 200


def test_a_body_over_the_limit_is_refused_before_it_is_read(untouched: Server) -> None:
    """The server decides by Content-Length and does not wait for the body."""
    with untouched.connect() as connection:
        connection.send(RawConnection.head("POST", COMPLETIONS, {"Content-Length": str(1 << 40)}) + b"{")
        answer = connection.read_answer()
    assert answer.status == 413
    assert error_of(answer.json())["type"] == "invalid_request_error"


def test_a_body_over_the_limit_is_refused_when_its_length_is_unknown(untouched: Server) -> None:
    """A chunked body of 20 MB is refused once it exceeds the limit, even if the client first sends all of it."""
    with untouched.connect() as connection:
        try:
            connection.request_in_chunks(COMPLETIONS, [b" " * 1_000_000] * 20)
        except ConnectionError:
            pass  # the server may close the connection once it has answered
        try:
            assert connection.read_answer().status == 413
        except ConnectionError:
            pass  # and a reset may overtake the answer


def test_a_body_in_many_chunks_is_one_body(fake: Server) -> None:
    """Each chunk has one byte."""
    import json

    raw = json.dumps(completion(fake, n_tokens=1)).encode()
    with fake.connect() as connection:
        connection.request_in_chunks(COMPLETIONS, [raw[i : i + 1] for i in range(len(raw))])
        assert connection.read_answer().status == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png"]
)
def test_another_content_type_is_refused(untouched: Server, content_type: str) -> None:
    error = refuse(untouched, COMPLETIONS, completion(untouched, n_tokens=1), {"Content-Type": content_type})
    assert error["status"] in (400, 415)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_accepted_in_any_spelling(fake: Server, content_type: str) -> None:
    """Parameters and case of the media type are ignored."""
    with fake.connect() as connection:
        connection.request("POST", COMPLETIONS, completion(fake, n_tokens=1), {"Content-Type": content_type})
        assert connection.read_answer().status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Request-Id": "x" * 1_000_000},
        {f"X-Bomb-{i}": "x" * 100 for i in range(20_000)},
        {"Authorization": "Bearer " + "k" * 500_000},
    ],
    ids=["long-id", "many", "long-key"],
)
def test_a_header_bomb_is_harmless(fake: Server, headers: dict[str, str]) -> None:
    """It may be answered, refused or disconnected. It is never echoed, and the next request is served."""
    with fake.connect() as connection:
        try:
            connection.request("POST", COMPLETIONS, completion(fake, n_tokens=1), headers)
            answer = connection.read_answer()
            assert answer.status < 500
            assert sum(map(len, answer.headers.values())) < 10_000
        except ConnectionError:
            pass  # disconnected
    assert fake.post(COMPLETIONS, completion(fake, n_tokens=1))[0] == 200


@pytest.mark.parametrize(
    "raw", [b"GARBAGE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"POST / HTTP/9.9\r\n\r\n", b"\r\n" * 1000]
)
def test_bytes_that_are_not_http_are_harmless(fake: Server, raw: bytes) -> None:
    """A port scanner and a TLS client are answered or disconnected."""
    with fake.connect(timeout_s=2) as connection:
        try:
            connection.send(raw)
            connection.half_close()
            connection.read_some()
        except (ConnectionError, TimeoutError):
            pass
    assert fake.post(COMPLETIONS, completion(fake, n_tokens=1))[0] == 200


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/nothing", 404),
    ("POST", "/", 404),
    ("GET", CHAT, 405),
    ("DELETE", COMPLETIONS, 405),
    ("POST", "/v1/models", 405),
])  # fmt: skip
def test_an_unknown_path_or_method_is_refused_in_the_same_envelope(
    untouched: Server, method: str, path: str, status: int
) -> None:
    """SDKs read the error from this envelope."""
    with untouched.connect() as connection:
        connection.request(method, path)
        answer = connection.read_answer()
    assert answer.status == status
    assert error_of(answer.json())["type"] == "invalid_request_error"


REFUSED_FIELDS: list[tuple[str, str, object]] = [
    (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}]),
    (CHAT, "functions", [{"name": "f"}]),
    (CHAT, "top_logprobs", 3),  # without `logprobs`
    (CHAT, "response_format", {"type": "json_object"}),
    (CHAT, "modalities", ["audio"]),
    (COMPLETIONS, "top_logprobs", 3),
    (COMPLETIONS, "suffix", "end"),
    (COMPLETIONS, "best_of", 4),
    (COMPLETIONS, "echo", True),
]


@pytest.mark.parametrize(("path", "field", "value"), REFUSED_FIELDS, ids=lambda value: repr(value)[:24])
def test_a_feature_that_is_not_served_is_refused_by_name(
    untouched: Server, path: str, field: str, value: object
) -> None:
    """A feature is never accepted and then ignored."""
    error = refuse(untouched, path, minimal(untouched, path) | {field: value})
    assert error["status"] == 400
    assert_names(error, field)


LIMIT = 64


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server with a context of 64 tokens."""
    with Server("fake", "--max-model-len", str(LIMIT)) as server:
        yield server


@pytest.mark.parametrize("n_tokens", [1, 5, 1_000_000])
def test_a_prompt_one_under_the_limit_gets_its_one_token(small: Server, n_tokens: int) -> None:
    """`max_tokens` is an upper limit: an answer that does not fit is shortened, not refused."""
    status, answer = small.post(COMPLETIONS, completion(small, [7] * (LIMIT - 1), n_tokens=n_tokens))
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("n_prompt", [LIMIT, LIMIT + 1, LIMIT * 100])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_at_or_over_the_limit_is_refused(small: Server, n_prompt: int, stream: bool) -> None:
    """There must be room for one token. A stream is refused before its headers, like a whole answer."""
    error = refuse(small, COMPLETIONS, completion(small, [7] * n_prompt, n_tokens=1, stream=stream))
    assert (error["status"], error["code"]) == (400, "context_length_exceeded")
    assert str(LIMIT) in error["message"]
    assert small.post(COMPLETIONS, completion(small, n_tokens=1))[0] == 200


def test_one_bad_prompt_refuses_the_whole_request(small: Server) -> None:
    """One of eight prompts is too long, so none is computed and nothing is held."""
    accepted = small.stats()["engine"]["accepted_total"]
    prompts = [[7] * 4] * 7 + [[7] * LIMIT]
    error = refuse(small, COMPLETIONS, completion(small, prompts, n_tokens=1))
    assert error["code"] == "context_length_exceeded"
    assert small.stats()["engine"]["accepted_total"] == accepted
    assert not small.stats()["live"]


def test_a_full_queue_refuses_with_a_time_to_try_again() -> None:
    """One request runs and one may wait. A request with two choices is refused as a whole, with `retry-after`."""
    with Server("fake", "--max-running", "1", "--max-waiting", "1") as server:
        with server.connect() as busy, server.connect() as connection:
            busy.request("POST", COMPLETIONS, completion(server, n_tokens=4000, stream=True))
            wait_until(lambda: server.stats()["engine"]["running"] == 1, "one runs")
            connection.request("POST", COMPLETIONS, completion(server, n_tokens=1, n=2))
            answer = connection.read_answer()
        assert answer.status in (429, 503)
        error_of(answer.json())
        assert float(answer.headers["retry-after"]) > 0
        assert server.stats()["engine"]["accepted_total"] == 1
