"""Parsing streams of several servers, malformed ones too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluiceway_lab.load.client import LoadError, Recording, complaint, parse_reply
from sluiceway_lab.load.transcript import read_answer, read_plain, read_transcript, text_times
from support.scripted_http import DONE, chunk, event, plain, stream, token, usage


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


def recorded(*pieces: bytes) -> Recording:
    """The connection opens at 0.0. The first piece arrives at 1.0, each other one a second later."""
    return Recording(0.0, [(float(second), piece) for second, piece in enumerate(pieces, 1)], 99.0)


def test_times_are_those_of_events_with_text() -> None:
    pieces = stream(token("a"), token("b"), token("c", "length"), usage(47, 3), DONE)
    answer = read_answer(recorded(*pieces))
    assert (answer.chunk_s, answer.first_token_s) == ((2.0, 3.0, 4.0), 2.0)
    assert answer.itls_s == [1.0, 1.0]
    assert (answer.prompt_tokens, answer.completion_tokens, answer.n_tokens) == (47, 3, 3)
    assert answer.n_bytes == sum(map(len, pieces))


def test_stream_is_the_same_when_its_bytes_come_one_by_one() -> None:
    whole = b"".join(stream(token("ä"), token("b", "stop"), usage(5, 2), DONE))
    recording = recorded(*(whole[i : i + 1] for i in range(len(whole))))
    answer = read_answer(recording)
    assert (answer.n_tokens, len(answer.itls_s)) == (2, 1)
    assert read_transcript(recording.reply()).text == "äb"


def test_several_events_of_one_chunk_have_one_time() -> None:
    """If a server sends events together, its client has waited for the first."""
    answer = read_answer(recorded(*stream(token("a") + token("b"), DONE)))
    assert answer.chunk_s == (2.0, 2.0)


def test_tokens_are_counted_by_events_when_there_is_no_usage() -> None:
    answer = read_answer(recorded(*stream(token("a"), token("b"), DONE)))
    assert (answer.n_tokens, answer.prompt_tokens) == (2, None)


def test_stream_like_vllms_is_read() -> None:
    """Several tokens per event, `stop_reason` next to `finish_reason`, the usage at the end."""
    first = event({"choices": [{"index": 0, "text": " two words", "logprobs": None, "stop_reason": None}]})
    last = event({"choices": [{"index": 0, "text": " end", "finish_reason": "length", "stop_reason": None}]})
    answer = read_answer(recorded(*stream(first, last, usage(9, 3), DONE)))
    assert (len(answer.chunk_s), answer.n_tokens) == (2, 3)


def test_stream_like_llama_cpps_is_read() -> None:
    """Null before the first text, an empty last chunk with timings, the usage in its own chunk."""
    events = [
        event({"choices": [{"text": " a", "index": 0, "logprobs": None, "finish_reason": None}]}),
        event({"choices": [{"text": None, "index": 0}], "usage": None}),
        event({"choices": [{"text": "", "index": 0, "finish_reason": "length"}]}),
        event({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 7}, "timings": {"predicted_n": 2}}),
    ]
    recording = recorded(*stream(*events, DONE))
    answer, transcript = read_answer(recording), read_transcript(recording.reply())
    assert (answer.n_tokens, answer.prompt_tokens) == (2, 7)
    assert (transcript.text, transcript.finish_reasons) == (" a", ["length"])


def test_last_usage_counts_when_every_chunk_has_one() -> None:
    counts = [{"prompt_tokens": 7, "completion_tokens": n} for n in (1, 2)]
    answer = read_answer(recorded(*stream(token("a", usage=counts[0]), token("b", usage=counts[1]), DONE)))
    assert answer.n_tokens == 2


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([plain(503, b'{"error":{"message":"too busy"}}')], r"refused \(503\): too busy"),
        (stream(token("a")), "broke off"),
        (
            stream(token("a"), event({"error": {"message": "out of memory"}}), DONE),
            "broke off the answer: out of memory",
        ),
        (stream(token("a"), event("nonsense"), DONE), "no JSON"),
        (stream(event({"choices": 3}), event({"choices": [4]}), DONE), "without a text"),
        (stream(usage(1, 0), DONE), "without a text"),
        (stream(DONE), "without a text"),
    ],
)
def test_answer_is_refused_when_it_is_no_completion(pieces: list[bytes], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        read_answer(recorded(*pieces))


def test_times_of_a_left_stream_are_known() -> None:
    head, *chunks = stream(token("a"), token("b"), token("c"))
    assert text_times(recorded(head, chunks[0], chunks[1], chunk(token("c"))[:9])) == [2.0, 3.0]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"error":{"message":"no","type":"x"}}', "no"),
        (b'{"error":"just text"}', "just text"),
        (b'{"detail":"other"}', "{'detail': 'other'}"),
        (b"[1]", "[1]"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b" ", "no reason given"),
    ],
)
def test_complaint_is_found_in_any_form(body: bytes, sentence: str) -> None:
    assert complaint(body) == sentence
