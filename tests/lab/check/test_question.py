"""Findings, the pace of a server, and requests to it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec
import pytest

from sluiceway_lab.check import question as module
from sluiceway_lab.check.question import CheckConfig, Finding, ServerPace, by_faults, fitted, graded, paced, unknown
from sluiceway_lab.load.client import LoadError
from sluiceway_lab.load.record import Grade
from support.model_server import SMALL, context_of, model_server
from support.scripted_http import DONE, completion_stream, scripted_server, stream, token
from support.target_servers import target_server


@pytest.mark.parametrize(
    ("faults", "blemishes", "grade", "sentence"),
    [
        ([], [], Grade.PASS, "all well"),
        ([], ["odd"], Grade.WARN, "odd"),
        (["bad"], ["odd"], Grade.FAIL, "bad; odd"),
        (["bad", "bad"], [], Grade.FAIL, "bad"),
    ],
)
def test_any_fault_fails_and_any_blemish_warns(
    faults: list[str], blemishes: list[str], grade: Grade, sentence: str
) -> None:
    assert by_faults(faults, blemishes, "all well", {"n": 1.0}) == Finding(grade, sentence, {"n": 1.0})


def test_number_is_graded_by_two_bounds() -> None:
    found = [graded(value, 1.0, 2.0) for value in (1.0, 1.1, 2.0, 2.1)]
    assert found == [Grade.PASS, Grade.WARN, Grade.WARN, Grade.FAIL]


def test_no_opinion_has_a_reason() -> None:
    assert unknown("no gauges") == Finding(Grade.UNKNOWN, "no gauges")


async def test_pace_is_that_of_one_stream() -> None:
    async with scripted_server({"/v1/completions": completion_stream(8)}) as server:
        pace = await paced(target_server(server.target), SMALL)
        assert len(server.requests) == 4
    assert 0 < pace.itl_s < pace.first_token_s + 1


async def test_pace_is_known_if_the_answer_comes_in_one_event() -> None:
    async with scripted_server({"/v1/completions": stream(token("a", "length"), DONE)}) as server:
        pace = await paced(target_server(server.target), SMALL)
    assert pace.itl_s == pytest.approx(pace.first_token_s / 32, rel=0.01)
    async with scripted_server({"/v1/completions": stream(DONE)}) as server:
        with pytest.raises(LoadError, match="without a text"):
            await paced(target_server(server.target), SMALL)


async def test_whole_answer_is_that_of_the_stream() -> None:
    async with model_server() as (script, _):
        context = await context_of(script)
        first, second = context.prompts("x", 2)
        answers = await context.streams([first, second], 4)
        assert [answer.text for answer in answers] == [(await context.plain(one, 4)).text for one in (first, second)]
        assert context.has_usage and await context.generated() == script.n_generated


async def test_server_is_idle_or_not_in_time() -> None:
    """A busy server gets a token to compute, in case it updates its gauges only then."""
    async with model_server() as (script, _):
        context = await context_of(script)
        assert await context.seconds_until_idle(1.0) is not None
        script.running.append("a request that never ends")
        await context.until_busy()
        assert await context.seconds_until_idle(0.3) is None


async def test_server_that_checks_only_when_quiet_gets_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_LOOKS_S", 0.02)
    async with model_server() as (script, _):
        context = await context_of(script)
        script.running.append("one whose reader has left")
        looks_s: list[float] = []
        usual = script.metrics

        def metrics() -> str:
            looks_s.append(time.monotonic())
            if len(looks_s) > 1 and looks_s[-1] - looks_s[-2] >= 0.3:
                script.running.clear()
            return usual()

        monkeypatch.setattr(script, "metrics", metrics)
        assert await context.seconds_until_idle(10.0, quiet_s=0.3) is not None
    assert len(looks_s) > 2


async def test_slow_answer_goes_on_and_a_silent_one_is_a_fault() -> None:
    """The limit is for each silence. The whole answer takes about twelve times as long."""
    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.1)
        context = dataclasses.replace(await context_of(script), config=hurried)
        assert (await context.stream("Once", 300)).finish_reasons == ["length"]
        script.slots = 0
        with pytest.raises(LoadError, match=r"the server said nothing for 0.05 s"):
            await context.plain("Once", 1)


def test_slow_server_is_asked_less() -> None:
    whole = CheckConfig()
    assert fitted(whole, ServerPace(0.1, 0.04)) == whole
    slow = fitted(whole, ServerPace(0.1, 0.1))
    assert (slow.tokens, slow.long_tokens, slow.burst, slow.prompt_words) == (32, 300, 320, 200)
    least = fitted(whole, ServerPace(9.0, 9.0))
    assert (least.tokens, least.long_tokens, least.burst, least.prompt_words) == (16, 240, 64, 100)
    assert fitted(SMALL, ServerPace(9.0, 9.0)).burst == SMALL.burst


async def test_server_that_is_never_busy_is_a_fault() -> None:
    async with model_server() as (script, _):
        context = await context_of(script)
        hurried = dataclasses.replace(context, config=msgspec.structs.replace(SMALL, timeout_s=0.1))
        with pytest.raises(LoadError, match=r"0.05 s in vain for the server to run something"):
            await hurried.until_busy()


async def test_busy_server_may_refuse_the_token() -> None:
    busy = "vllm:num_requests_running 1\n"
    async with scripted_server(
        {"/metrics": [b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + busy.encode()]}
    ) as server:
        ours = await _context(target_server(server.target, kind="vllm"))
        assert await ours.seconds_until_idle(0.3) is None
        assert "/v1/completions" in [path for path, _, _ in server.requests]


async def test_tokens_of_an_unknown_server_are_not_counted() -> None:
    assert await (await _context(target_server())).generated() is None


async def _context(server: Any) -> Any:
    async with model_server() as (script, _):
        return dataclasses.replace(await context_of(script, msgspec.structs.replace(SMALL)), server=server)
