"""Streams on a scripted server, and their figures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.processes import ProcessUsage
from sluiceway_lab.load.streams import (
    Observed,
    cpu_figures,
    observe,
    one_by_one,
    read_all,
    split_costs,
    stream_run,
    together,
)
from sluiceway_lab.load.transcript import Answer
from support.scripted_http import completion_stream, plain, scripted_server, stream, token
from support.target_servers import target_server

PATH = "/v1/completions"


def answer(started_s: float, *chunk_s: float, completion_tokens: int | None = None) -> Answer:
    return Answer(
        started_s=started_s,
        chunk_s=chunk_s,
        text="",
        finish_reason="length",
        prompt_tokens=None,
        completion_tokens=completion_tokens,
        n_bytes=100,
    )


async def test_simultaneous_streams_are_all_read() -> None:
    async with scripted_server({PATH: completion_stream(5)}) as server:
        ours = target_server(server.target)
        requests = [ours.request(f"prompt {index}", 5) for index in range(8)]
        seen = await observe(ours, None, lambda: together(ours, requests))
    assert [one.n_tokens for one in seen.answers] == [5] * 8 and seen.errors == []
    assert sorted(body["prompt"] for _, _, body in server.requests) == [f"prompt {index}" for index in range(8)]
    assert seen.costs.keys() == {"cpu_client_s"} and seen.costs["cpu_client_s"] > 0


async def test_streams_are_read_one_after_another() -> None:
    async with scripted_server({PATH: completion_stream(2)}) as server:
        ours = target_server(server.target)
        answers, _ = read_all(await one_by_one(ours, [ours.request(text, 2) for text in "abc"]))
    assert [body["prompt"] for _, _, body in server.requests] == ["a", "b", "c"]
    ends = [one.chunk_s[-1] for one in answers]
    assert all(end_s < later.started_s for end_s, later in zip(ends, answers[1:], strict=False))


async def test_failed_request_is_reported_with_the_other_answers() -> None:

    def answering(body: dict[str, str]) -> Sequence[bytes]:
        broken = {"refused": [plain(503, b"busy")], "broken": stream(token("a"))}
        return broken.get(body["prompt"]) or completion_stream(3)

    async with scripted_server({PATH: answering}) as server:
        ours = target_server(server.target)
        requests = [ours.request(text, 3) for text in ("good", "refused", "broken")]
        seen = await observe(ours, None, lambda: together(ours, requests))
    assert len(seen.answers) == 1
    assert seen.errors == ["the server refused (503): busy", "the server broke off the answer"]


async def test_server_that_answers_nothing_is_not_measured() -> None:
    async with scripted_server({PATH: [plain(503, b"busy")]}) as server:
        ours = target_server(server.target)
        with pytest.raises(LoadError, match=r"^s: the server refused \(503\): busy"):
            await observe(ours, None, lambda: together(ours, [ours.request("p", 1)]))
        with pytest.raises(LoadError, match="^s: nothing was asked"):
            await observe(ours, None, lambda: together(ours, []))
    with pytest.raises(LoadError, match="no answer from"):
        await observe(ours, None, lambda: together(ours, [ours.request("p", 1)]))


def test_figures_are_of_all_streams_together() -> None:
    answers = [answer(10.0, 11.0, 12.0, completion_tokens=4), answer(10.5, 12.0, 12.0, 15.0)]
    seen = Observed(answers, ["one failed"], {"cpu_client_s": 0.5, "cpu_api_s": 2.0, "cpu_tokenizer_s": 1.75})
    run = stream_run(target_server(), "together", 3, 1, seen, 4)
    assert (run.server, run.scenario, run.streams, run.repeat, run.errors) == ("s", "together", 3, 1, ["one failed"])
    assert (
        run.figures.items()
        >= {
            "tokens": 7.0,
            "makespan_s": 5.0,
            "tokens_per_s": 1.4,
            "first_token_min_s": 1.0,
            "first_token_max_s": 1.5,
            "itl_min_s": 0.0,
            "itl_max_s": 3.0,
            "bytes_per_token": 200 / 7,
            "chunks_per_token": 5 / 7,
            "short_answers": 1.0,
            "cpu_client_s": 0.5,
            "cpu_api_per_chunk_s": 0.4,
            "cpu_tokenizer_per_token_s": 0.25,
        }.items()
    )


def test_processor_time_is_what_was_added() -> None:
    before = {"api": [ProcessUsage(1.0, 0, 0)], "gone": [ProcessUsage(9.0, 0, 0)]}
    after = {"api": [ProcessUsage(1.5, 0, 0), ProcessUsage(0.25, 0, 0)], "engine": [ProcessUsage(2.0, 0, 0)]}
    assert cpu_figures(before, after) == {"cpu_api_s": 0.75, "cpu_engine_s": 2.0, "cpu_server_s": 2.75}
    assert cpu_figures(before, {}) == {}


LONG = {"cpu_api_s": 0.140, "requests": 20.0, "chunks_per_token": 0.5, "tokens": 2560.0}
SHORT = {"cpu_api_s": 0.056, "requests": 20.0, "chunks_per_token": 1.0, "tokens": 160.0}


def test_costs_are_separated_by_long_and_short_answers() -> None:
    """7 ms for 64 events and 2.8 ms for 8 events: 75 µs for each event, and 2.2 ms for the request."""
    split = split_costs(LONG, SHORT)
    assert split["cpu_api_per_further_chunk_s"] == pytest.approx(75e-6)
    assert split["cpu_api_per_request_s"] == pytest.approx(2.2e-3)


@pytest.mark.parametrize(
    ("long", "short"),
    [
        (LONG, {}),
        ({name: value for name, value in LONG.items() if name != "cpu_api_s"}, SHORT),
        (LONG, LONG | {"cpu_api_s": 0.2}),
    ],
    ids=["short ones failed", "no process is seen", "equally long"],
)
def test_costs_are_not_split_where_nothing_tells_them_apart(long: dict[str, float], short: dict[str, float]) -> None:
    assert split_costs(long, short) == {}
