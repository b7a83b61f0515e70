"""The engine in the process of its caller: real loops in threads, with in-process pipes and the fake model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest

from sluiceway import types
from sluiceway.config import ModelFiles, ModelKind
from sluiceway.engine.setup import build_engine
from sluiceway.errors import ConfigError, ModelSourceError, RequestError, SluicewayError
from sluiceway.ipc.pipes.endpoint import AsyncInlet
from sluiceway.llm import LLM, PromptLike, SamplingParams
from sluiceway.tokenizer import rendering
from sluiceway.tokenizer.text.byte_tokenizer import ByteTokenizer
from sluiceway.tokenizer.text.detokenizer import Detokenizer
from sluiceway.tokenizer.text.tokenizer import TemplateSource
from sluiceway.types import FinishReason
from support.server import wait_until

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")
SHORT = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(FAKE, kv_cache_tokens=4096, max_running=8) as llm:
        yield llm


def test_finish_reason_is_formatted_as_its_value(llm: LLM) -> None:
    """The finish reason of vLLM is a string."""
    [answer] = llm.generate("one", SHORT)
    assert f"{answer.finish_reason}" == str(answer.finish_reason) == "length"


def test_answers_are_in_the_order_of_the_prompts(llm: LLM) -> None:
    """There are more prompts than slots. Each answer is the same as when its prompt runs alone."""
    prompts = [f"prompt number {i}" for i in range(20)]
    together = llm.generate(prompts, SHORT)
    alone = [llm.generate(prompt, SHORT)[0] for prompt in prompts]
    assert together == alone
    assert {len(answer.token_ids) for answer in together} == {8}
    assert {answer.finish_reason for answer in together} == {FinishReason.LENGTH}


def test_pieces_of_a_stream_join_to_the_whole_answer(llm: LLM) -> None:
    assert "".join(llm.stream("tell me", SHORT)) == llm.generate("tell me", SHORT)[0].text


def test_pieces_of_a_chat_stream_join_to_the_whole_answer(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answer = llm.chat(messages, SHORT)
    assert answer.prompt_tokens > 0
    assert "".join(llm.stream_chat(messages, SHORT)) == answer.text


@pytest.mark.parametrize("prompts", [["tell me"], ["a", "once upon a time", "b" * 50]])
def test_answers_are_the_same_with_speculation(llm: LLM, prompts: list[str]) -> None:
    """It may be set for a request or for the engine."""
    params = SamplingParams(temperature=0.0, max_tokens=60)
    answers = llm.generate(prompts, params)
    assert llm.generate(prompts, msgspec.structs.replace(params, speculation="ngram")) == answers
    with LLM(FAKE, kv_cache_tokens=4096, speculation="ngram", max_draft_tokens=3) as speculating:
        assert speculating.generate(prompts, params) == answers


def test_answer_has_the_requested_logprobs_of_its_tokens(llm: LLM) -> None:
    """Without the parameter it has none."""
    (plain,) = llm.generate("tell me", SHORT)
    (answer,) = llm.generate("tell me", msgspec.structs.replace(SHORT, logprobs=2))
    assert plain.logprobs == () and answer.text == plain.text
    assert tuple(one.token.token_id for one in answer.logprobs) == answer.token_ids
    assert all(one.token == one.top[0] and len(one.top) == 2 for one in answer.logprobs)


@pytest.mark.parametrize("n", [-1, 1001])
def test_number_of_logprobs_outside_its_range_is_refused(llm: LLM, n: int) -> None:
    with pytest.raises(RequestError, match="logprobs"):
        llm.generate("tell me", msgspec.structs.replace(SHORT, logprobs=n))


def test_logprobs_are_refused_for_streams(llm: LLM) -> None:
    """A stream has no place for them, and they would be computed in vain."""
    with pytest.raises(RequestError, match="logprobs"):
        next(llm.stream("tell me", msgspec.structs.replace(SHORT, logprobs=2)))


def test_text_ends_before_a_stop_string(llm: LLM) -> None:
    whole = llm.generate("stop here", SHORT)[0].text
    stop = whole[3:5]
    cut = llm.generate("stop here", SHORT, stop=[stop])[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason is FinishReason.STOP


def test_closing_a_stream_cancels_its_request(llm: LLM) -> None:
    """The stream would fill the whole context. The next request is served."""
    pieces = llm.stream("on and on", SamplingParams(temperature=0.0, ignore_eos=True))
    assert next(pieces)
    pieces.close()
    assert llm.generate("next", SHORT)[0].finish_reason is FinishReason.LENGTH


def test_prompt_that_cannot_be_served_raises_its_refusal(llm: LLM) -> None:
    """The other prompts of the call are cancelled."""
    with pytest.raises(RequestError, match="token"):
        llm.generate(["fine", "x" * 100_000], SHORT)
    assert llm.generate("still here", SHORT)


def test_calls_from_threads_are_batched(llm: LLM) -> None:
    """Each thread gets its own answer."""
    expected = {f"thread {i}": llm.generate(f"thread {i}", SHORT)[0].text for i in range(6)}
    answers: dict[str, str] = {}

    def ask(prompt: str) -> None:
        answers[prompt] = llm.generate(prompt, SHORT)[0].text

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == expected


def test_close_is_idempotent_and_later_calls_raise() -> None:
    llm = LLM(FAKE, kv_cache_tokens=4096)
    llm.close()
    llm.close()
    with pytest.raises(SluicewayError, match="closed"):
        llm.generate("too late")


@pytest.mark.parametrize("wrong", [7, None, object(), "half a character: \ud800"])
def test_prompt_that_is_not_text_is_refused_and_affects_no_later_call(llm: LLM, wrong: Any) -> None:
    """The other prompts of the call are cancelled."""
    with pytest.raises(RequestError):
        llm.generate(["on and on", wrong], SamplingParams(temperature=0.0, ignore_eos=True))
    with pytest.raises(RequestError):
        llm.chat([{"role": "user", "content": wrong}])
    assert llm.generate("still here", SHORT)


def test_no_thread_is_left_when_one_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is stopped, and the error says what happened."""

    async def leave(*_: object) -> None:
        pass

    monkeypatch.setattr("sluiceway.llm.run_tokenizer", leave)
    before = threading.enumerate()
    with pytest.raises(SluicewayError, match="could not be started"):
        LLM(FAKE, kv_cache_tokens=4096)
    assert threading.enumerate() == before


# Arguments.

HELLO = [{"role": "user", "content": "hello"}]


def param_of(call: Callable[[], object]) -> str | None:
    """Return the argument that the refusal names; its message names it too."""
    with pytest.raises(RequestError) as caught:
        call()
    refusal = caught.value.refusal
    assert refusal.param is not None and refusal.param.partition("[")[0] in refusal.message
    return refusal.param


@pytest.mark.parametrize("stop", ["", [""], ("a", ""), ["x", 7], 5, ["x"] * 17])
def test_invalid_stop_string_is_refused_and_affects_no_later_call(llm: LLM, stop: Any) -> None:
    """It is refused before anything is sent to the threads."""
    assert (param_of(lambda: llm.generate("a", stop=stop)) or "").startswith("stop")
    assert (param_of(lambda: llm.chat(HELLO, stop=stop)) or "").startswith("stop")
    assert (param_of(lambda: llm.stream("a", stop=stop)) or "").startswith("stop")
    assert llm.generate("still here", SHORT)


def test_single_stop_string_needs_no_list(llm: LLM) -> None:
    """Its characters are not stop strings of their own."""
    whole = llm.generate("stop here", SHORT)[0].text
    stop = whole[3:5]
    expected = whole[: whole.index(stop)]
    assert llm.generate("stop here", SHORT, stop=stop)[0].text == expected
    assert llm.generate("stop here", SamplingParams(temperature=0.0, max_tokens=8, stop=stop))[0].text == expected
    assert "".join(llm.stream("stop here", SHORT, stop=stop)) == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("min_p", 2.0),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("seed", 2**70),
        ("logprobs", 999),
    ],
)
def test_sampling_outside_its_range_is_refused(llm: LLM, field: str, value: Any) -> None:
    """So are parameters of the engine's own class, which is made without checks. The ranges have tests of their own."""
    assert param_of(lambda: llm.generate("a", types.SamplingParams(**{field: value}))) == field
    assert param_of(lambda: llm.stream_chat(HELLO, types.SamplingParams(**{field: value}))) == field


def test_prompts_have_several_forms(llm: LLM) -> None:
    """The same forms as in vLLM."""
    ids = ByteTokenizer().encode("tell me")
    (expected,) = llm.generate("tell me", SHORT)
    forms: list[PromptLike] = [ids, tuple(ids), {"prompt": "tell me"}, {"prompt_token_ids": ids}]
    for prompt in forms:
        (answer,) = llm.generate(prompt, SHORT)
        assert (answer.text, answer.prompt_tokens) == (expected.text, expected.prompt_tokens)
        assert "".join(llm.stream(prompt, SHORT)) == expected.text
    mixed: list[PromptLike] = [ids, "tell me", {"prompt_token_ids": ids}]
    answers = llm.generate(mixed, SHORT)
    assert [answer.text for answer in answers] == [expected.text] * 3
    assert [answer.prompt for answer in answers] == [None, "tell me", None]
    assert llm.generate([], SHORT) == []


@pytest.mark.parametrize(
    ("prompts", "param"),
    [
        (7, "prompts"),
        ("", "prompts"),
        ([""], "prompts[0]"),
        ([1, "a"], "prompts[1]"),
        ([1, -5], "prompts[1]"),
        (["a", [1, True]], "prompts[1][1]"),
        (["a", []], "prompts[1]"),
        ([1.5], "prompts[0]"),
        ({"prompt": 7}, "prompts.prompt"),
        ({"prompt_token_ids": []}, "prompts"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "prompts"),
        ([{"prompt": "a", "multi_modal_data": {}}], "prompts[0]"),
        ([{}], "prompts[0]"),
        ({"a"}, "prompts"),
    ],
)
def test_prompt_of_another_form_is_refused(llm: LLM, prompts: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, SHORT)
    assert caught.value.refusal.param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "robot", "content": "hi"}], "messages[0].role"),
        ([HELLO, [{"role": "user"}]], "messages[1][0].content"),
        ([HELLO, "hi"], "messages[1]"),
        ([HELLO, []], "messages[1]"),
    ],
)
def test_invalid_message_is_refused(llm: LLM, messages: Any, param: str) -> None:
    """The error has its position, as over HTTP."""
    assert param_of(lambda: llm.chat(messages, SHORT)) == param


def test_conversations_are_answered_together(llm: LLM) -> None:
    """A list of conversations gets a list of answers. Tuples work like lists, and text parts like a text."""
    other = ({"role": "user", "content": [{"type": "text", "text": "good"}, {"type": "text", "text": "bye"}]},)
    alone = [llm.chat(HELLO, SHORT), llm.chat([{"role": "user", "content": "goodbye"}], SHORT)]
    assert llm.chat([HELLO, other], SHORT) == alone
    assert llm.chat([HELLO], SHORT) == alone[:1]


def test_n_gives_several_answers_to_a_prompt(llm: LLM) -> None:
    """The first is the same as with `n` 1. Each has a seed of its own."""
    params = SamplingParams(seed=7, max_tokens=8, n=3)
    first, second = llm.generate(["tell me", "tell them"], params)
    assert [len(answer.outputs) for answer in (first, second)] == [3, 3]
    assert len({one.token_ids for one in first.outputs}) == 3
    (alone,) = llm.generate("tell me", msgspec.structs.replace(params, n=1))
    assert (first.text, alone.outputs) == (alone.text, (alone,))
    assert param_of(lambda: llm.stream("tell me", params)) == "n"


def test_each_prompt_may_have_its_own_sampling_parameters(llm: LLM) -> None:
    short, shorter = SHORT, SamplingParams(temperature=0.0, max_tokens=3)
    answers = llm.generate(["tell me", "tell me"], [short, shorter])
    assert [len(answer.token_ids) for answer in answers] == [8, 3]
    assert param_of(lambda: llm.generate(["tell me"], [short, shorter])) == "sampling_params"


def test_sampling_parameters_have_two_argument_names(llm: LLM) -> None:
    """The name in vLLM, and an older one."""
    expected = llm.generate("tell me", SHORT)
    assert llm.generate("tell me", sampling_params=SHORT) == llm.generate("tell me", sampling=SHORT) == expected
    assert "".join(llm.stream("tell me", sampling=SHORT)) == expected[0].text
    assert param_of(lambda: llm.generate("tell me", SHORT, sampling=SHORT)) == "sampling"
    assert param_of(lambda: llm.generate("tell me", [SHORT], sampling=SHORT)) == "sampling"


def test_logit_bias_is_a_mapping(llm: LLM) -> None:
    """The engine finds the id outside the vocabulary, so the mapping has reached it."""
    params = SamplingParams(temperature=0.0, max_tokens=3, logit_bias={65: 100.0})
    assert llm.generate("tell me", params)
    assert param_of(lambda: llm.generate("tell me", SamplingParams(logit_bias={10**6: 1.0}))) == "logit_bias"


def test_progress_bar_is_shown_on_request(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SHORT)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], SHORT, use_tqdm=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err and captured.out == ""


def test_model_is_found_by_its_name() -> None:
    with LLM("fake", kv_cache_tokens=4096, max_model_len=40) as llm:
        (answer,) = llm.generate("tell me", SamplingParams(temperature=0.0, ignore_eos=True))
    assert answer.prompt_tokens + len(answer.token_ids) == 40


def test_missing_model_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match="gone"):
        LLM(tmp_path / "gone")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"model": 7}, "model"),
        ({"model": None}, "model"),
        ({"dtype": "half"}, "dtype"),
        ({"speculation": True}, "speculation"),
        ({"kv_cache_tokens": "many"}, "kv_cache_tokens"),
        ({"kv_cache_tokens": 1}, "kv_cache_tokens"),
        ({"max_running": 0}, "max_running"),
        ({"max_running": 1.5}, "max_running"),
        ({"max_running": 10**6}, "max_running"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"threads": True}, "threads"),
        ({"max_draft_tokens": 0}, "max_draft_tokens"),
    ],
)
def test_error_names_the_wrong_setting(settings: dict[str, Any], field: str) -> None:
    """It is raised before anything is loaded."""
    with pytest.raises(ConfigError) as caught:
        LLM(**{"model": FAKE, **settings})
    assert caught.value.field == field


def test_many_sequences_may_run_in_one_step() -> None:
    """The token budget of a step grows with `max_running`."""
    with LLM("fake", kv_cache_tokens=4096, max_running=600) as llm:
        assert llm.generate("tell me", SHORT)


# Faults and ended threads.


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a fault for the test")


def leave(*_: object, **__: object) -> NoReturn:
    raise SystemExit


def test_fault_in_one_request_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """That call fails, and the next one is answered."""
    tokenizer = ByteTokenizer()
    monkeypatch.setattr("sluiceway.llm.load_tokenizer", lambda _: tokenizer)
    with LLM("fake", kv_cache_tokens=4096) as llm:
        for method in ("encode", "detokenizer"):
            with monkeypatch.context() as patched:
                patched.setattr(tokenizer, method, fail)
                with pytest.raises(RequestError) as caught:
                    llm.generate("tell me", SHORT)
            assert caught.value.refusal.code == "tokenizer_fault"
            assert llm.generate("tell me", SHORT)[0].text


class BrittleDetokenizer(Detokenizer):
    """Fails at its third token."""

    __slots__ = ("_n_left",)

    def push(self, token_id: int) -> str:
        self._n_left = getattr(self, "_n_left", 3) - 1
        if not self._n_left:
            raise RuntimeError("a fault for the test")
        return super().push(token_id)


class BrittleChats(ByteTokenizer):
    """Fails to decode answers to chats; answers to plain prompts are decoded."""

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        token_bytes = super().detokenizer().token_bytes
        return Detokenizer(token_bytes, continues=True) if continues else BrittleDetokenizer(token_bytes)


def test_answer_that_cannot_be_decoded_fails_alone_and_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other streams go on, and the engine releases everything in the end."""
    built = []

    def build(*args: Any) -> Any:
        built.append(build_engine(*args))
        return built[-1]

    monkeypatch.setattr("sluiceway.llm.build_engine", build)
    monkeypatch.setattr("sluiceway.llm.load_tokenizer", lambda _: BrittleChats())
    long = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    with LLM("fake", kv_cache_tokens=4096, max_running=4) as llm:
        ((engine, _),) = built
        other = llm.stream("tell me", long)
        text = next(other)
        for _ in range(8):
            with pytest.raises(RequestError) as caught:
                llm.chat([{"role": "user", "content": "hello"}], long)
            assert caught.value.refusal.code == "tokenizer_fault"
        text += "".join(other)
        assert text == llm.generate("tell me", long)[0].text
        wait_until(lambda: not engine.has_work, "the engine is idle")
        stats = engine.stats
        assert stats.accepted_total == stats.finished_total == stats.released_total == 10
        assert (stats.blocks_leased, stats.blocks_fenced) == (0, 0)


class Templated(ByteTokenizer):
    """Encodes bytes as the fake model does, but has a chat template."""

    def __init__(self, source: str) -> None:
        self.chat_format = TemplateSource(source, {})  # type: ignore[assignment,method-assign]


def test_template_that_does_not_compile_raises_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor raises the error, and no thread is left."""
    before = threading.enumerate()
    monkeypatch.setattr("sluiceway.llm.load_tokenizer", lambda _: Templated("{% for %}"))
    with pytest.raises(ConfigError, match="^chat_template: is not valid"):
        LLM("fake", kv_cache_tokens=4096)
    assert threading.enumerate() == before


def test_chat_whose_template_loops_affects_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused after its time limit. Other calls are answered meanwhile and afterwards."""
    monkeypatch.setattr(rendering, "LIMITS", msgspec.structs.replace(rendering.LIMITS, deadline_s=4.0))
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'loop' %}" + loop + "{% endif %}{{ messages[0].content }}"
    monkeypatch.setattr("sluiceway.llm.load_tokenizer", lambda _: Templated(source))
    with LLM("fake", kv_cache_tokens=4096) as llm:
        codes: list[str] = []

        def ask() -> None:
            with pytest.raises(RequestError) as caught:
                llm.chat([{"role": "user", "content": "loop"}], SHORT)
            codes.append(caught.value.refusal.code)

        looping = threading.Thread(target=ask)
        looping.start()
        assert llm.generate("tell me", SHORT)[0].text
        assert llm.chat([{"role": "user", "content": "hello"}], SHORT).text
        looping.join()
        assert codes == ["template_timeout"]
        assert llm.chat([{"role": "user", "content": "hello"}], SHORT).text


def broken_llm(monkeypatch: pytest.MonkeyPatch, thread: str, fault: Callable[..., NoReturn]) -> LLM:
    """Return an LLM in which this thread raises the fault at the first request."""
    built = []

    def build(*args: Any) -> Any:
        built.append(build_engine(*args))
        return built[-1]

    monkeypatch.setattr("sluiceway.llm.build_engine", build)
    llm = LLM("fake", kv_cache_tokens=4096)
    ((engine, _),) = built
    owner, method = {
        "tokenizer": (AsyncInlet, "take"),
        "engine": (engine, "step"),
        "events": (llm, "_hand_over"),
    }[thread]
    monkeypatch.setattr(owner, method, fault)
    return llm


@pytest.mark.parametrize("thread", ["tokenizer", "engine", "events"])
@pytest.mark.parametrize(("fault", "why"), [(fail, "RuntimeError: a fault for the test"), (leave, "SystemExit")])
def test_calls_raise_the_reason_when_a_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch, thread: str, fault: Callable[..., NoReturn], why: str
) -> None:
    """The waiting call raises it, and so does every later one. The LLM can still be closed."""
    before = threading.enumerate()
    llm = broken_llm(monkeypatch, thread, fault)
    sentence = f"its {thread} thread has ended.*{why}"
    for _ in range(2):
        with pytest.raises(SluicewayError, match=sentence):
            llm.generate("tell me", SHORT)
    with pytest.raises(SluicewayError, match=sentence):
        list(llm.stream("tell me", SHORT))
    llm.close()
    assert threading.enumerate() == before
    with pytest.raises(SluicewayError, match="closed"):
        llm.generate("tell me", SHORT)
