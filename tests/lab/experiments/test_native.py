"""The client of the native protocol."""

from __future__ import annotations

import pytest

from sluiceway.sse.decoder import EventDecoder
from sluiceway_lab.experiments import native
from sluiceway_lab.load.client import LoadError
from support.labs import native_answer, native_event, native_events
from support.scripted_http import plain, scripted_server
from support.target_servers import target_server


async def test_stream_is_read_with_its_ids() -> None:
    start, first, second, end = native_events(7, 8)
    late = native_event(9, "token", index=1, id=None, text="b")
    async with scripted_server({"/v1/stream": native_answer(start, first, second, late, end)}) as script:
        found = await native.stream(target_server(script.target), "hi", 2, seed=3)
        (_, _, body), *_ = script.requests
    assert found.token_ids == (7, 8) and found.text == "aab"
    assert found.n_bytes == sum(map(len, (start, first, second, late, end)))
    assert found.fields("done")[0]["reason"] == "length"
    assert body == {
        "model": "m", "prompt": "hi", "max_tokens": 2, "temperature": 0, "ignore_eos": True, "seed": 3,
    }  # fmt: skip


def test_leads_are_those_of_the_likeliest_tokens() -> None:
    top = [{"id": 7, "token": "a", "logprob": -0.25}, {"id": 8, "token": "b", "logprob": -1.5}]
    events = [
        native_event(1, "token", index=0, id=8, text="b", logprob=-1.5, top=top),
        native_event(2, "token", index=0, id=None, text="tail"),
    ]
    assert native.NativeStream(tuple(EventDecoder().feed(b"".join(events))), 0).leads == (1.25,)


async def test_streams_have_fields_of_their_own() -> None:
    async with scripted_server({"/v1/stream": native_answer(*native_events(7))}) as script:
        found = await native.streams(target_server(script.target), ["a", "b"], 1, [{"seed": 1}, {"seed": 2}])
        sent = {(body["prompt"], body["seed"]) for _, _, body in script.requests}
    assert [one.token_ids for one in found] == [(7,), (7,)] and sent == {("a", 1), ("b", 2)}


async def test_whole_answer_is_an_object() -> None:
    async with scripted_server({"/v1/generate": [plain(200, b'{"text":"a","token_ids":[7]}')]}) as script:
        assert await native.generate(target_server(script.target), "hi", 1) == {"text": "a", "token_ids": [7]}


async def test_refusal_is_a_sentence() -> None:
    async with scripted_server({"/v1/stream": [plain(503, b'{"error":{"message":"full"}}')]}) as script:
        with pytest.raises(LoadError, match=r"refused \(503\): full"):
            await native.stream(target_server(script.target), "hi", 1)


@pytest.mark.parametrize(("n_events", "said"), [(0, "it was empty"), (2, '"index": 0')])
async def test_stream_without_its_end_is_a_fault(n_events: int, said: str) -> None:
    events = native_events(7)[:n_events]
    async with scripted_server({"/v1/stream": native_answer(*events)}) as script:
        with pytest.raises(LoadError, match=f"did not end with done: .*{said}"):
            await native.stream(target_server(script.target), "hi", 1)
