"""The offline server: real loops as threads over in-process pipes, with the fake model."""

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


def test_finish_reason_is_written_as_its_word(llm: LLM) -> None:
    """As vLLM's, which is a string."""
    [answer] = llm.generate("one", SHORT)
    assert f"{answer.finish_reason}" == str(answer.finish_reason) == "length"


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
    with pytest.raises(RequestError, match="logprobs"):
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
    """The reason comes as an exception, and the other prompts of the call are cancelled."""
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


# What callers give.

HELLO = [{"role": "user", "content": "hello"}]


def param_of(call: Callable[[], object]) -> str | None:
    """The argument that the refusal names, in its text too."""
    with pytest.raises(RequestError) as caught:
        call()
    refusal = caught.value.refusal
    assert refusal.param is not None and refusal.param.partition("[")[0] in refusal.message
    return refusal.param


@pytest.mark.parametrize("stop", ["", [""], ("a", ""), ["x", 7], 5, ["x"] * 17])
def test_bad_stop_string_is_refused_and_harms_nobody(llm: LLM, stop: Any) -> None:
    """Before anything is sent: neither thread meets it."""
    assert (param_of(lambda: llm.generate("a", stop=stop)) or "").startswith("stop")
    assert (param_of(lambda: llm.chat(HELLO, stop=stop)) or "").startswith("stop")
    assert (param_of(lambda: llm.stream("a", stop=stop)) or "").startswith("stop")
    assert llm.generate("still here", SHORT)


def test_one_stop_string_needs_no_list(llm: LLM) -> None:
    """Its characters are no stop strings of their own."""
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
    """Also that of the engine, which is made without checks; the ranges themselves are tested with the schema."""
    assert param_of(lambda: llm.generate("a", types.SamplingParams(**{field: value}))) == field
    assert param_of(lambda: llm.stream_chat(HELLO, types.SamplingParams(**{field: value}))) == field


def test_prompts_have_several_forms(llm: LLM) -> None:
    """Those of vLLM."""
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
def test_prompt_of_no_form_is_refused(llm: LLM, prompts: Any, param: str) -> None:
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
def test_message_that_is_none_is_refused(llm: LLM, messages: Any, param: str) -> None:
    """As over HTTP, by its place."""
    assert param_of(lambda: llm.chat(messages, SHORT)) == param


def test_conversations_are_answered_together(llm: LLM) -> None:
    """A list of them gets a list; tuples and parts of text are what lists and texts are."""
    other = ({"role": "user", "content": [{"type": "text", "text": "good"}, {"type": "text", "text": "bye"}]},)
    alone = [llm.chat(HELLO, SHORT), llm.chat([{"role": "user", "content": "goodbye"}], SHORT)]
    assert llm.chat([HELLO, other], SHORT) == alone
    assert llm.chat([HELLO], SHORT) == alone[:1]


def test_prompt_gets_several_answers_when_asked(llm: LLM) -> None:
    """The first is the one that it gets alone; each has a seed of its own."""
    params = SamplingParams(seed=7, max_tokens=8, n=3)
    first, second = llm.generate(["tell me", "tell them"], params)
    assert [len(answer.outputs) for answer in (first, second)] == [3, 3]
    assert len({one.token_ids for one in first.outputs}) == 3
    (alone,) = llm.generate("tell me", msgspec.structs.replace(params, n=1))
    assert (first.text, alone.outputs) == (alone.text, (alone,))
    assert param_of(lambda: llm.stream("tell me", params)) == "n"


def test_each_prompt_may_have_sampling_of_its_own(llm: LLM) -> None:
    short, shorter = SHORT, SamplingParams(temperature=0.0, max_tokens=3)
    answers = llm.generate(["tell me", "tell me"], [short, shorter])
    assert [len(answer.token_ids) for answer in answers] == [8, 3]
    assert param_of(lambda: llm.generate(["tell me"], [short, shorter])) == "sampling_params"


def test_sampling_has_two_names(llm: LLM) -> None:
    """vLLM's, and an older one."""
    expected = llm.generate("tell me", SHORT)
    assert llm.generate("tell me", sampling_params=SHORT) == llm.generate("tell me", sampling=SHORT) == expected
    assert "".join(llm.stream("tell me", sampling=SHORT)) == expected[0].text
    assert param_of(lambda: llm.generate("tell me", SHORT, sampling=SHORT)) == "sampling"
    assert param_of(lambda: llm.generate("tell me", [SHORT], sampling=SHORT)) == "sampling"


def test_bias_is_a_mapping_as_in_other_classes(llm: LLM) -> None:
    """An id outside the vocabulary is found by the engine, which thus has got it."""
    params = SamplingParams(temperature=0.0, max_tokens=3, logit_bias={65: 100.0})
    assert llm.generate("tell me", params)
    assert param_of(lambda: llm.generate("tell me", SamplingParams(logit_bias={10**6: 1.0}))) == "logit_bias"


def test_bar_is_shown_when_asked_for(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], SHORT)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], SHORT, use_tqdm=True)
    captured = capsys.readouterr()
    assert "2/2" in captured.err and captured.out == ""


def test_model_is_found_by_its_name() -> None:
    """As on the command line."""
    with LLM("fake", kv_cache_tokens=4096, max_model_len=40) as llm:
        (answer,) = llm.generate("tell me", SamplingParams(temperature=0.0, ignore_eos=True))
    assert answer.prompt_tokens + len(answer.token_ids) == 40


def test_model_that_is_not_there_says_so(tmp_path: Path) -> None:
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
def test_wrong_setting_is_named(settings: dict[str, Any], field: str) -> None:
    """Before anything is loaded."""
    with pytest.raises(ConfigError) as caught:
        LLM(**{"model": FAKE, **settings})
    assert caught.value.field == field


def test_many_sequences_may_run_at_once() -> None:
    """A step grows with them."""
    with LLM("fake", kv_cache_tokens=4096, max_running=600) as llm:
        assert llm.generate("tell me", SHORT)


# A thread that ends.


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("a fault for the test")


def leave(*_: object, **__: object) -> NoReturn:
    raise SystemExit


def test_a_fault_over_one_request_ends_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """That call fails, and the next is answered."""
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
    """Breaks over its third token."""

    __slots__ = ("_n_left",)

    def push(self, token_id: int) -> str:
        self._n_left = getattr(self, "_n_left", 3) - 1
        if not self._n_left:
            raise RuntimeError("a fault for the test")
        return super().push(token_id)


class BrittleChats(ByteTokenizer):
    """Answers to chats cannot be decoded to their end; those to plain prompts can."""

    def detokenizer(self, *, continues: bool = False) -> Detokenizer:
        token_bytes = super().detokenizer().token_bytes
        return Detokenizer(token_bytes, continues=True) if continues else BrittleDetokenizer(token_bytes)


def test_an_answer_that_cannot_be_decoded_costs_no_other_and_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams beside it go on, and the engine gives back all that it had."""
    built = []

    def build(*args: Any) -> Any:
        built.append(build_engine(*args))
        return built[-1]

    monkeypatch.setattr("sluiceway.llm.build_engine", build)
    monkeypatch.setattr("sluiceway.llm.load_tokenizer", lambda _: BrittleChats())
    long = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    with LLM("fake", kv_cache_tokens=4096, max_running=4) as llm:
        ((engine, _),) = built
        beside = llm.stream("tell me", long)
        text = next(beside)
        for _ in range(8):
            with pytest.raises(RequestError) as caught:
                llm.chat([{"role": "user", "content": "hello"}], long)
            assert caught.value.refusal.code == "tokenizer_fault"
        text += "".join(beside)
        assert text == llm.generate("tell me", long)[0].text
        wait_until(lambda: not engine.has_work, "the engine is idle")
        stats = engine.stats
        assert stats.accepted_total == stats.finished_total == stats.released_total == 10
        assert (stats.blocks_leased, stats.blocks_fenced) == (0, 0)


class Templated(ByteTokenizer):
    """The fake model with a chat template of a model."""

    def __init__(self, source: str) -> None:
        self.chat_format = TemplateSource(source, {})  # type: ignore[assignment,method-assign]


def test_a_template_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor raises the tokenizer's error, and no thread is left."""
    before = threading.enumerate()
    monkeypatch.setattr("sluiceway.llm.load_tokenizer", lambda _: Templated("{% for %}"))
    with pytest.raises(ConfigError, match="^chat_template: is not valid"):
        LLM("fake", kv_cache_tokens=4096)
    assert threading.enumerate() == before


def test_a_chat_over_which_the_template_loops_ends_no_other_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused when its time is over; the others are answered meanwhile and after it."""
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
    """An LLM of which this thread meets the fault at the first request."""
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
def test_calls_say_why_when_a_thread_has_ended(
    monkeypatch: pytest.MonkeyPatch, thread: str, fault: Callable[..., NoReturn], why: str
) -> None:
    """The call that waits, and every later one; and it can be closed."""
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
