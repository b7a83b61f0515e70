"""What renders chats in a child process: a job is a chat, its result a `Rendered` or a `Refused`.

`build` is the entry of a pool of workers (`tokenizer.rendering`). The template is compiled with the first job and not
before: compiling it is foreign work too, and the limits are those of jobs.
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
    """A chat as text; no text for a job without messages, which asks whether the template is one."""

    text: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is no text. `is_template`: no chat can be rendered, since the template does not compile."""

    message: str
    is_template: bool = False


Rendering: TypeAlias = Rendered | Refused


def build(init: bytes) -> Callable[[bytes], bytes]:
    """What does the jobs of one child. `init` is a `TemplateSource`."""
    from sluiceway.tokenizer.text.chat_template import ChatTemplate  # the other side never loads Jinja

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
