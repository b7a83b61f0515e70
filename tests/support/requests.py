"""What end-to-end tests send and expect: requests of a given length, streams, and an idle server after them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from support.raw_http import RawConnection
from support.server import SETTLE_S, Server, wait_until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"

ENDLESS = 1_000_000
"""More tokens than the context has room for. The answer ends long after everything that a test waits for."""


def completion(server: Server, prompt: object = "once", n_tokens: int = 16, **fields: Any) -> dict[str, Any]:
    """A completion that generates exactly `n_tokens` tokens, greedily."""
    body = {
        "model": served_name(server),
        "prompt": prompt,
        "max_tokens": n_tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    return body | fields


def served_name(server: Server) -> str:
    """The name of the served model."""
    if server.served_name is None:
        server.served_name = json.loads(server.get("/v1/models")[1])["data"][0]["id"]
    return server.served_name


def open_stream(server: Server, body: dict[str, Any], **options: Any) -> tuple[RawConnection, Iterator[str]]:
    """Send a streaming request and read its headers: the connection, and the events to come."""
    connection = server.connect(**options)
    connection.request("POST", CHAT if "messages" in body else COMPLETIONS, body | {"stream": True})
    status, headers = connection.read_head()
    if status != 200 or not headers["content-type"].startswith("text/event-stream"):
        answer = connection.read_some()
        connection.finish()
        raise AssertionError(f"this is no stream: {status} {headers} {answer!r}")
    return connection, connection.read_events()


def take(events: Iterator[str], n: int) -> list[Any]:
    """The next `n` events, decoded."""
    return [json.loads(next(events)) for _ in range(n)]


def chunks_of(events: Iterable[str]) -> list[Any]:
    """All chunks of a stream, which must end correctly."""
    *chunks, end = events
    assert end == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def token_ids(chunks: Iterable[Any]) -> list[int]:
    """The token ids of a stream with one choice."""
    return [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()]


def error_of(answer: Any) -> dict[str, Any]:
    """The error object of an answer. Checks the keys of the envelope."""
    error: dict[str, Any] = answer["error"]
    assert error.keys() == {"message", "type", "param", "code"}, answer
    assert error["message"] and error["type"] and error["code"], answer
    return error


def is_quiet(server: Server) -> bool:
    """True if no process holds anything for a request, and every block is released."""
    stats = server.stats()
    assert stats["clean"], stats["violations"]
    if stats["stale"] or stats["live"] or any(stats["tokenizer"].values()):
        return False
    if any(stats["api"][table] for table in ("sessions", "live", "tombstones")):
        return False
    engine = stats["engine"]
    n_idle = engine["blocks_free"] + engine["blocks_cached"]
    return bool(n_idle == engine["blocks_total"] and engine["released_total"] == engine["accepted_total"])


def wait_quiet(server: Server, timeout_s: float = SETTLE_S) -> None:
    wait_until(lambda: is_quiet(server), "every process is idle", timeout_s)


def wait_left(server: Server, before: float, n: int = 1) -> None:
    """Wait until everything is released; then exactly `n` more clients have left, each released once."""
    wait_until(lambda: server.finished("disconnected") >= before + n, f"{n} more left")
    wait_quiet(server)
    assert server.finished("disconnected") == before + n
    engine = server.stats()["engine"]
    assert engine["finished_total"] == engine["accepted_total"] == engine["released_total"]
