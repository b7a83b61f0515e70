"""The jobs of a child process that renders chats."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from sluiceway.tokenizer.text.rendering import Refused, Rendered, Rendering, build
from sluiceway.tokenizer.text.tokenizer import TemplateSource

CHAT = [{"role": "user", "content": "Hi"}]

Work = Callable[[list[dict[str, str]]], Rendering]


def worker(source: str) -> Work:
    work = build(msgspec.msgpack.encode(TemplateSource(source, {"bos_token": "<s>"})))
    return lambda messages: msgspec.msgpack.decode(work(msgspec.msgpack.encode(messages)), type=Rendering)


def test_chats_are_rendered_one_after_another() -> None:
    """With the variables of the template. Missing fields of a message are not defined."""
    render = worker("{{ bos_token }}{% for m in messages %}{{ m.content }}{{ 'name' in m }}{% endfor %}")
    assert render(CHAT) == Rendered("<s>HiFalse")
    assert render([*CHAT, {"role": "user", "content": "é", "name": "Bob"}]) == Rendered("<s>HiFalseéTrue")


def test_a_job_without_messages_compiles_the_template() -> None:
    """It renders nothing, because a template may refuse an empty chat."""
    assert worker("{{ raise_exception('no') }}")([]) == Rendered("")


def test_an_error_of_the_template_is_passed_on() -> None:
    """The next chat is rendered."""
    render = worker("{% if messages|length > 1 %}{{ raise_exception('One at a time') }}{% endif %}ok")
    assert render(CHAT * 2) == Refused("The model's chat template refuses these messages: One at a time.")
    assert render(CHAT) == Rendered("ok")


@pytest.mark.parametrize("messages", [[], CHAT])
def test_a_template_that_does_not_compile_refuses_everything(messages: list[dict[str, str]]) -> None:
    """Each time. The name of the field is left to the caller."""
    render = worker("{% for %}")
    for _ in range(2):
        result = render(messages)
        assert isinstance(result, Refused) and result.message.startswith("is not valid: ")
