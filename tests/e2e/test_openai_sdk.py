"""Uses the unmodified `openai` package against a real server, as its users do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from support.requests import ENDLESS, served_name
from support.server import Server, wait_until

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say hello."}]


@pytest.fixture
def client(fake: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fake.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


@pytest.fixture
def name(fake: Server) -> str:
    return served_name(fake)


def test_chat_answers_with_choices_and_usage(client: openai.OpenAI, name: str) -> None:
    """They have the parts that every program reads: text, finish reason, usage, ids."""
    answer = client.chat.completions.create(model=name, messages=HELLO, max_tokens=8, extra_body={"ignore_eos": True})
    assert answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == name
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8


def test_completions_answer_prompt_major_when_there_are_several(client: openai.OpenAI, name: str) -> None:
    """Two prompts with two choices each give four choices, ordered by prompt."""
    answer = client.completions.create(model=name, prompt=["one", "two"], n=2, max_tokens=4, temperature=0)
    assert answer.id.startswith("cmpl-") and answer.object == "text_completion"
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    assert answer.choices[2].text == answer.choices[3].text


def test_models_are_listed_and_retrieved(client: openai.OpenAI, name: str) -> None:
    """The list contains the served model, with the same card as under its name."""
    listed = client.models.list().data
    assert [model.id for model in listed] == [name]
    assert client.models.retrieve(name) == listed[0]


def test_a_streamed_chat_has_the_text_of_the_whole_answer(client: openai.OpenAI, name: str) -> None:
    """The joined deltas are the text. There is one role, one finish reason, and no usage."""
    whole = client.chat.completions.create(model=name, messages=HELLO, max_tokens=12, temperature=0)
    chunks = list(client.chat.completions.create(model=name, messages=HELLO, max_tokens=12, temperature=0, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_usage_when_requested(client: openai.OpenAI, name: str) -> None:
    """One more chunk, without choices, before the end."""
    *chunks, last = client.chat.completions.create(
        model=name,
        messages=HELLO,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 5
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    """The SDK raises its own class, with every field of the error."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    assert caught.value.type == "invalid_request_error"
    assert "no-such-model" in caught.value.message


def test_an_unknown_model_is_not_found_when_it_is_retrieved(client: openai.OpenAI) -> None:
    """Also for a name with a slash."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("some/other-model")
    assert caught.value.code == "model_not_found"


def test_a_bad_value_is_a_bad_request_that_names_the_field(client: openai.OpenAI, name: str) -> None:
    """The message comes from the server, so a person can act on it."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=name, messages=HELLO, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=name, messages=[])
    assert caught.value.param == "messages"


def test_every_answer_carries_a_request_id(client: openai.OpenAI, name: str) -> None:
    """The SDK finds the id on answers and on errors, so a user can quote it."""
    answer = client.chat.completions.create(model=name, messages=HELLO, max_tokens=1)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=name, messages=[])
    assert answer._request_id and caught.value.request_id and answer._request_id != caught.value.request_id


def test_a_stream_is_cancelled_when_it_is_closed_early(client: openai.OpenAI, fake: Server, name: str) -> None:
    """After `stream.close()` the engine stops."""
    before = fake.finished("disconnected")
    stream = client.completions.create(
        model=name, prompt="on and on", max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    wait_until(lambda: fake.finished("disconnected") == before + 1, "the closed stream counts as cancelled")


def test_several_choices_stream_together(client: openai.OpenAI, name: str) -> None:
    """Each index has its own role, text and finish reason."""
    chunks = list(
        client.chat.completions.create(model=name, messages=HELLO, n=3, max_tokens=6, temperature=1, stream=True)
    )
    for index in range(3):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert choices[0].delta.role == "assistant"
        assert [choice.finish_reason for choice in choices].count(None) == len(choices) - 1
        assert choices[-1].finish_reason in ("length", "stop")


def test_a_stop_string_cuts_the_text_before_itself(client: openai.OpenAI, name: str) -> None:
    """Streamed or whole, the text has neither the stop string nor what follows it."""
    whole = client.completions.create(model=name, prompt="abc", max_tokens=40, temperature=0).choices[0].text
    assert len(whole) >= 4
    stop = whole[len(whole) // 2 :][:2]
    expected = whole[: whole.index(stop)]
    cut = client.completions.create(model=name, prompt="abc", max_tokens=40, temperature=0, stop=stop).choices[0]
    assert (cut.text, cut.finish_reason) == (expected, "stop")
    streamed = client.completions.create(model=name, prompt="abc", max_tokens=40, temperature=0, stop=stop, stream=True)
    assert "".join(choice.text for chunk in streamed for choice in chunk.choices) == expected


def test_the_same_seed_gives_the_same_text(client: openai.OpenAI, name: str) -> None:
    """At temperature 1 another seed gives another text."""

    def text(seed: int) -> str:
        answer = client.completions.create(
            model=name, prompt="dice", max_tokens=24, temperature=1, seed=seed, extra_body={"ignore_eos": True}
        )
        return answer.choices[0].text

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(5)}) > 1


async def test_an_asynchronous_client_gets_many_answers_together(fake: Server, name: str) -> None:
    """Each of 64 conversations over one client's pool gets the same answer as alone."""
    async with openai.AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="none", max_retries=0, timeout=300) as client:

        async def text(prompt: str) -> str:
            answer = await client.completions.create(model=name, prompt=prompt, max_tokens=20, temperature=0)
            return answer.choices[0].text

        prompts = [f"number {i}" for i in range(64)]
        together = await asyncio.gather(*map(text, prompts))
        alone = [await text(prompt) for prompt in prompts]
    assert together == alone


async def test_a_stream_is_cancelled_with_its_task(fake: Server, name: str) -> None:
    """Cancelling the client's task closes the connection, and that cancels the request."""
    before = fake.finished("disconnected")
    async with openai.AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        started = asyncio.Event()

        async def read() -> None:
            stream = await client.completions.create(
                model=name, prompt="endless", max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True}
            )
            async for _ in stream:
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    wait_until(lambda: fake.finished("disconnected") == before + 1, "the abandoned stream counts as cancelled")
