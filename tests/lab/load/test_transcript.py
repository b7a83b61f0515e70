"""Parsing streams, malformed ones too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluiceway_lab.load.replies import LoadError, parse_reply
from sluiceway_lab.load.transcript import read_plain, read_transcript
from support.scripted_http import DONE, event, plain, stream, token


def read(*events: bytes) -> Any:
    return read_transcript(parse_reply([(float(place), raw) for place, raw in enumerate(stream(*events))]))


def test_stream_is_read() -> None:
    said = read(b": still here\n\n", token("a", id="x"), token("", "stop", id="x"), DONE, event({"id": "y"}))
    assert (said.text, said.finish_reasons, said.ids) == ("a", ["stop"], {"x", "y"})
    assert (said.n_comments, said.n_after_done, said.is_whole, said.errors) == (1, 1, True, [])
    assert [part.at_s for part in said.deltas] == [2.0]


def test_chat_is_read() -> None:
    assert read(event({"choices": [{"delta": {"content": "a"}}]}), event({"choices": [{"delta": {}}]})).text == "a"


def test_other_choices_are_left_out_of_the_text() -> None:
    assert read(event({"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]})).text == "a"


def test_errors_are_read_in_any_form() -> None:
    said = read(event({"error": {"message": "no"}}), event({"error": {"code": 1}}), event({"error": "never"}))
    assert said.errors == ["no", "{'code': 1}", "never"]


def test_end_that_never_came_is_none() -> None:
    assert read(token("a")).n_after_done is None


@pytest.mark.parametrize(("data", "words"), [("{", "what is no JSON"), ("[]", "no JSON object but list")])
def test_event_that_is_no_object_is_a_fault(data: str, words: str) -> None:
    with pytest.raises(LoadError, match=words):
        read(event(data))


def test_refusal_is_a_fault() -> None:
    reply = parse_reply([(0.0, plain(400, b'{"error": {"message": "no"}}'))])
    for reading in (read_transcript, read_plain):
        with pytest.raises(LoadError, match=r"the server refused \(400\): no"):
            reading(reply)


def test_plain_answer_is_read() -> None:
    raw = plain(200, json.dumps({"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}).encode())
    part = read_plain(parse_reply([(0.0, raw)]))
    assert (part.text, part.finish_reason) == ("a", "stop")
    with pytest.raises(LoadError, match="without a choice"):
        read_plain(parse_reply([(0.0, plain(200, b"{}"))]))
    with pytest.raises(LoadError, match="broke off"):
        read_plain(parse_reply([(0.0, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b'{"choices": [{}]}')]))
