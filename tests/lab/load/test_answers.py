"""Parsing streams of several servers."""

from __future__ import annotations

import pytest

from sluiceway_lab.load.answers import read_answer, text_times
from sluiceway_lab.load.replies import LoadError, Recording, complaint
from support.scripted_http import DONE, chunk, event, plain, stream, token, usage


def recorded(*pieces: bytes) -> Recording:
    """The connection opens at 0.0. The first piece arrives at 1.0, each other one a second later."""
    return Recording(0.0, [(float(second), piece) for second, piece in enumerate(pieces, 1)], 99.0)


def test_times_are_those_of_events_with_text() -> None:
    pieces = stream(token("a"), token("b"), token("c", "length"), usage(47, 3), DONE)
    answer = read_answer(recorded(*pieces))
    assert (answer.text, answer.chunk_s, answer.first_token_s) == ("abc", (2.0, 3.0, 4.0), 2.0)
    assert answer.itls_s == [1.0, 1.0]
    assert (answer.finish_reason, answer.prompt_tokens, answer.completion_tokens, answer.n_tokens) == (
        "length",
        47,
        3,
        3,
    )
    assert answer.n_bytes == sum(map(len, pieces))


def test_stream_is_the_same_when_its_bytes_come_one_by_one() -> None:
    whole = b"".join(stream(token("ä"), token("b", "stop"), usage(5, 2), DONE))
    answer = read_answer(recorded(*(whole[i : i + 1] for i in range(len(whole)))))
    assert (answer.text, answer.n_tokens, len(answer.itls_s)) == ("äb", 2, 1)


def test_several_events_of_one_chunk_have_one_time() -> None:
    """If a server sends events together, its client has waited for the first."""
    answer = read_answer(recorded(*stream(token("a") + token("b"), DONE)))
    assert answer.chunk_s == (2.0, 2.0)


def test_tokens_are_counted_by_events_when_there_is_no_usage() -> None:
    answer = read_answer(recorded(*stream(token("a"), token("b"), DONE)))
    assert (answer.n_tokens, answer.prompt_tokens, answer.finish_reason) == (2, None, None)


def test_stream_like_vllms_is_read() -> None:
    """Several tokens per event, `stop_reason` next to `finish_reason`, the usage at the end."""
    first = event({"choices": [{"index": 0, "text": " two words", "logprobs": None, "stop_reason": None}]})
    last = event({"choices": [{"index": 0, "text": " end", "finish_reason": "length", "stop_reason": None}]})
    answer = read_answer(recorded(*stream(first, last, usage(9, 3), DONE)))
    assert (len(answer.chunk_s), answer.n_tokens, answer.finish_reason) == (2, 3, "length")


def test_stream_like_llama_cpps_is_read() -> None:
    """Null before the first text, an empty last chunk with timings, the usage in its own chunk."""
    events = [
        event({"choices": [{"text": " a", "index": 0, "logprobs": None, "finish_reason": None}]}),
        event({"choices": [{"text": None, "index": 0}], "usage": None}),
        event({"choices": [{"text": "", "index": 0, "finish_reason": "length"}]}),
        event({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 7}, "timings": {"predicted_n": 2}}),
    ]
    answer = read_answer(recorded(*stream(*events, DONE)))
    assert (answer.text, answer.n_tokens, answer.prompt_tokens, answer.finish_reason) == (" a", 2, 7, "length")


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
