"""An answer does not depend on its batch: over HTTP it has the same ids alone and together with others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.requests import ENDLESS, chunks_of, completion, open_stream, take, token_ids
from support.server import Server

N_STREAMS = 32

ANSWER_S = 120.0
"""A prompt may wait for all other prompts, on a machine that runs other tests too."""

WORDS = "river stone lantern window engine garden copper winter signal harbour".split()


def request(server: Server, i: int) -> dict[str, Any]:
    """Request number `i`. Prompts have 1 to about 65 tokens, answers 4 to 14; together they exceed a step's budget."""
    prompt = " ".join(WORDS[(i * 7 + j) % len(WORDS)] for j in range(1 + i * 2))
    return completion(server, prompt, n_tokens=4 + (i * 7) % 11, return_token_ids=True)


def answer(server: Server, body: dict[str, Any]) -> list[int]:
    connection, events = open_stream(server, body, timeout_s=ANSWER_S)
    with connection:
        return token_ids(chunks_of(events))


def answer_together(server: Server, bodies: list[dict[str, Any]]) -> list[list[int]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: answer(server, body), bodies))


def assert_same_alone_and_in_a_batch(server: Server) -> None:
    bodies = [request(server, i) for i in range(N_STREAMS)]
    together = answer_together(server, bodies)
    alone = [answer(server, body) for body in bodies]
    assert [len(ids) for ids in alone] == [body["max_tokens"] for body in bodies]
    assert together == alone
    assert len(set(map(tuple, alone))) > 1


def test_fake_answers_are_the_same_alone_and_in_a_batch(fake: Server) -> None:
    """Tests the way of text and sockets, without a model."""
    assert_same_alone_and_in_a_batch(fake)


@pytest.mark.slow
def test_model_answers_are_the_same_alone_and_in_a_batch(model: Server) -> None:
    """Batching, paging and chunked prefill of a real model in float32 change no token."""
    assert_same_alone_and_in_a_batch(model)


def test_a_short_request_ends_while_a_long_one_runs(fake: Server) -> None:
    """Batching is continuous: a sequence does not wait for the others of its batch."""
    connection, events = open_stream(fake, completion(fake, "long", n_tokens=ENDLESS))
    with connection:
        take(events, 3)
        assert len(answer(fake, completion(fake, "short", n_tokens=4, return_token_ids=True))) == 4
        assert fake.stats()["engine"]["running"] == 1


@pytest.mark.slow
def test_a_prompt_seen_before_gives_the_same_answer_again(model: Server) -> None:
    """The ids are the same whatever part of the prompt is still in the cache."""
    body = completion(model, "The harbour at night was " * 12, n_tokens=12, return_token_ids=True)
    assert answer(model, body) == answer(model, body) == answer(model, body)
