"""Speculation over HTTP: a request turns it on, the statistics show it, and the tokens stay the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.requests import chunks_of, completion, open_stream, token_ids
from support.server import Server

LIST = "one apple, two pears, three plums, " * 4
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 3},
    {"frequency_penalty": 0.3, "presence_penalty": 0.2},
]


def bodies(server: Server, speculation: str) -> list[dict[str, Any]]:
    """A prompt with repetitions and a prompt without any, each with every setting."""
    return [
        completion(
            server, prompt, n_tokens=40, return_token_ids=True, sluiceway={"speculation": speculation}, **settings
        )
        for prompt in (LIST, "The harbour lay quiet.")
        for settings in SETTINGS
    ]


def answer(server: Server, body: dict[str, Any]) -> tuple[str, list[int]]:
    """The text and the ids of a stream."""
    connection, events = open_stream(server, body, timeout_s=120.0)
    with connection:
        chunks = chunks_of(events)
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]), token_ids(chunks)


def drafts(server: Server) -> tuple[float, float]:
    """How many drafts were proposed and accepted since the start of the server."""
    tokens = server.stats()["tokens"]
    return tokens["draft"], tokens["accepted_draft"]


def assert_the_same_with_and_without(server: Server) -> tuple[float, float]:
    """Without drafts one after another, with drafts all together. Returns the numbers of drafts and accepted drafts."""
    before = drafts(server)
    without = [answer(server, body) for body in bodies(server, "off")]
    assert drafts(server) == before
    with ThreadPoolExecutor(len(without)) as pool:
        together = list(pool.map(lambda body: answer(server, body), bodies(server, "ngram")))
    assert together == without
    assert [len(ids) for _, ids in without] == [40] * len(without)
    proposed, accepted = drafts(server)
    return proposed - before[0], accepted - before[1]


def test_fake_answers_are_the_same_with_speculation(fake: Server) -> None:
    """Pairs of random letters occur again, so there are drafts."""
    proposed, accepted = assert_the_same_with_and_without(fake)
    assert proposed > accepted


@pytest.mark.slow
def test_model_answers_are_the_same_with_speculation(model: Server) -> None:
    """Greedy, seeded and with penalties. A list continues as it began, so most drafts are accepted."""
    proposed, accepted = assert_the_same_with_and_without(model)
    assert proposed > accepted > 40


def test_a_stop_string_ends_the_answer_at_the_same_place(fake: Server) -> None:
    """Tokens that the step has after it are dropped."""
    text, _ = answer(fake, bodies(fake, "off")[0])
    for stop in (text[10:13], text[-3:]):
        cut = [answer(fake, body | {"stop": stop}) for body in (bodies(fake, "off")[0], bodies(fake, "ngram")[0])]
        assert cut[0] == cut[1] and cut[0][0] == text[: text.index(stop)]


@pytest.mark.parametrize(
    ("option", "param"),
    [({"speculation": "always"}, "sluiceway.speculation"), ({"draft_model": "x"}, "sluiceway.draft_model")],
)
def test_an_unknown_option_is_refused_by_name(fake: Server, option: dict[str, Any], param: str) -> None:
    """It is refused before anything is held."""
    status, refused = fake.post("/v1/completions", completion(fake, "x") | {"sluiceway": option})
    assert (status, refused["error"]["param"]) == (400, param)
