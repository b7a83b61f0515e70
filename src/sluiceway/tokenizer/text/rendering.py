"""Renders chats in a child process. A job is a chat, its result a `Rendered` or a `Refused`.

`build` is the entry of the children (`tokenizer.rendering`). The template is compiled with the first job, because
compiling runs foreign code too, and limits apply to jobs only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from sluiceway.errors import ModelConfigError, RequestError
from sluiceway.tokenizer.text.tokenizer import TemplateSource

if TYPE_CHECKING:
    from sluiceway.tokenizer.text.chat_template import ChatTemplate


class Rendered(msgspec.Struct, frozen=True, tag="rendered"):
    """A chat as text. The text is empty for a job without messages, which only compiles the template."""

    text: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why a chat was not rendered. With `is_template`, the template does not compile, so no chat can be."""

    message: str
    is_template: bool = False


Rendering: TypeAlias = Rendered | Refused


def build(init: bytes) -> Callable[[bytes], bytes]:
    """Return the function that does the jobs of a child. `init` is an encoded `TemplateSource`."""
    from sluiceway.tokenizer.text.chat_template import ChatTemplate  # the parent never loads Jinja

    source = msgspec.msgpack.decode(init, type=TemplateSource)
    template: ChatTemplate | None = None

    def work(job: bytes) -> bytes:
        nonlocal template
        messages = msgspec.msgpack.decode(job, type=list[dict[str, str]])
        result: Rendering
        try:
            template = template or ChatTemplate(source)
            result = Rendered(template.render(messages) if messages else "")
        except ModelConfigError as error:
            result = Refused(str(error).removeprefix(f"{error.field}: "), is_template=True)
        except RequestError as error:
            result = Refused(error.refusal.message)
        return msgspec.msgpack.encode(result)

    return work
