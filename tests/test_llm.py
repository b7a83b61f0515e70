"""The offline server: real loops as threads over in-process pipes, with the fake model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import RequestError, SluicewayError
from sluiceway.llm import LLM
from sluiceway.types import FinishReason, SamplingParams

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")
SHORT = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(FAKE, kv_cache_tokens=4096, max_running=8) as llm:
        yield llm


def test_answers_are_in_the_order_of_the_prompts_when_many_are_asked(llm: LLM) -> None:
    """More prompts than slots: each answer equals the one that its prompt gets alone."""
    prompts = [f"prompt number {i}" for i in range(20)]
    together = llm.generate(prompts, SHORT)
    alone = [llm.generate(prompt, SHORT)[0] for prompt in prompts]
    assert together == alone
    assert {len(answer.token_ids) for answer in together} == {8}
    assert {answer.finish_reason for answer in together} == {FinishReason.LENGTH}


def test_pieces_join_to_the_whole_answer_when_streamed(llm: LLM) -> None:
    """Streaming changes nothing but the moment."""
    assert "".join(llm.stream("tell me", SHORT)) == llm.generate("tell me", SHORT)[0].text


def test_chat_streams_what_it_answers(llm: LLM) -> None:
    """The same for a conversation."""
    messages = [{"role": "user", "content": "hello"}]
    answer = llm.chat(messages, SHORT)
    assert answer.prompt_tokens > 0
    assert "".join(llm.stream_chat(messages, SHORT)) == answer.text


@pytest.mark.parametrize("prompts", [["tell me"], ["a", "once upon a time", "b" * 50]])
def test_answers_are_the_same_with_speculation(llm: LLM, prompts: list[str]) -> None:
    """Whether the request asks for it or the model was opened so."""
    params = SamplingParams(temperature=0.0, max_tokens=60)
    answers = llm.generate(prompts, params)
    assert llm.generate(prompts, msgspec.structs.replace(params, speculation="ngram")) == answers
    with LLM(FAKE, kv_cache_tokens=4096, speculation="ngram", max_draft_tokens=3) as speculating:
        assert speculating.generate(prompts, params) == answers


def test_tokens_are_told_with_their_logprobs_when_the_sampling_wants_them(llm: LLM) -> None:
    """Each token; without that wish there is nothing."""
    (plain,) = llm.generate("tell me", SHORT)
    (answer,) = llm.generate("tell me", msgspec.structs.replace(SHORT, logprobs=2))
    assert plain.logprobs == () and answer.text == plain.text
    assert tuple(one.token.token_id for one in answer.logprobs) == answer.token_ids
    assert all(one.token == one.top[0] and len(one.top) == 2 for one in answer.logprobs)


@pytest.mark.parametrize("n", [-1, 1001])
def test_number_of_logprobs_is_refused_when_it_makes_no_sense(llm: LLM, n: int) -> None:
    """Before it reaches the loops."""
    with pytest.raises(RequestError, match="logprobs"):
        llm.generate("tell me", msgspec.structs.replace(SHORT, logprobs=n))


def test_logprobs_are_refused_when_an_answer_comes_in_pieces(llm: LLM) -> None:
    """Nothing would be told of them, and they would be computed all the same."""
    with pytest.raises(RequestError, match="log-probabilities"):
        next(llm.stream("tell me", msgspec.structs.replace(SHORT, logprobs=2)))


def test_text_is_cut_when_a_stop_string_is_given(llm: LLM) -> None:
    """The answer ends before the stop string."""
    whole = llm.generate("stop here", SHORT)[0].text
    stop = whole[3:5]
    cut = llm.generate("stop here", SHORT, stop=[stop])[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason is FinishReason.STOP


def test_request_is_cancelled_when_its_stream_is_closed(llm: LLM) -> None:
    """A stream of the whole context ends when nobody wants it; the next request is served."""
    pieces = llm.stream("on and on", SamplingParams(temperature=0.0, ignore_eos=True))
    assert next(pieces)
    pieces.close()
    assert llm.generate("next", SHORT)[0].finish_reason is FinishReason.LENGTH


def test_refusal_is_raised_when_a_prompt_cannot_be_served(llm: LLM) -> None:
    """The reason comes as an exception, and the other prompts of the call are let go."""
    with pytest.raises(RequestError, match="token"):
        llm.generate(["fine", "x" * 100_000], SHORT)
    assert llm.generate("still here", SHORT)


def test_calls_from_threads_are_batched(llm: LLM) -> None:
    """Several threads may ask at once; each gets its own answer."""
    expected = {f"thread {i}": llm.generate(f"thread {i}", SHORT)[0].text for i in range(6)}
    got: dict[str, str] = {}

    def ask(prompt: str) -> None:
        got[prompt] = llm.generate(prompt, SHORT)[0].text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == expected


def test_close_is_idempotent_and_refuses_what_comes_later() -> None:
    """A closed LLM says so."""
    llm = LLM(FAKE, kv_cache_tokens=4096)
    llm.close()
    llm.close()
    with pytest.raises(SluicewayError, match="closed"):
        llm.generate("too late")


@pytest.mark.parametrize("wrong", [7, None, object(), "half a character: \ud800"])
def test_a_prompt_that_is_no_text_is_refused_and_harms_nobody(llm: LLM, wrong: Any) -> None:
    """Nor do the prompts of the same call go on."""
    with pytest.raises(RequestError):
        llm.generate(["on and on", wrong], SamplingParams(temperature=0.0, ignore_eos=True))
    with pytest.raises(RequestError):
        llm.chat([{"role": "user", "content": wrong}])
    assert llm.generate("still here", SHORT)


def test_nothing_is_left_when_a_loop_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is stopped, and the error says what happened."""

    async def leave(*_: object) -> None:
        pass

    monkeypatch.setattr("sluiceway.llm.run_tokenizer", leave)
    before = threading.enumerate()
    with pytest.raises(SluicewayError, match="could not be started"):
        LLM(FAKE, kv_cache_tokens=4096)
    assert threading.enumerate() == before
