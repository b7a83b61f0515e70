"""Draws docs/architecture.svg from the code: the processes, what runs in each, and the messages between them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import get_args
from xml.sax.saxutils import escape

from sluiceway.ipc.messages.to_api import ToApi
from sluiceway.ipc.messages.to_child import ToChild
from sluiceway.ipc.messages.to_engine import ToEngine
from sluiceway.ipc.messages.to_supervisor import ToSupervisor
from sluiceway.ipc.messages.to_tokenizer import FromApi, FromEngine

_WIDTH, _HEIGHT = 1000, 300
_BOX_TOP, _BOX_HEIGHT, _BOX_WIDTH = 110, 176, 170
_SUPERVISOR_TOP, _SUPERVISOR_HEIGHT = 14, 44
_PROCESSES: dict[str, tuple[int, Sequence[str]]] = {
    "API process": (150, ("api: HTTP", "protocols", "response: streams", "sse: events")),
    "Tokenizer process": (480, ("text: templates, tokens", "stop strings")),
    "Engine process": (810, ("engine: steps", "scheduler: blocks, cache", "model, native kernels")),
}
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1b2733 }
  .name { font-weight: 600 }
  .message { font-size: 11px; fill: #41566b }
  .box { fill: #eef4fa; stroke: #35608a; stroke-width: 1.5 }
  .arrow { stroke: #35608a; stroke-width: 1.5; marker-end: url(#head); fill: none }
  .control { stroke: #9aa9b8; stroke-dasharray: 4 3 }
"""


def picture() -> str:
    """The whole file."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
    yield "<title>The processes of Sluiceway and the messages between them</title>"
    yield f"<style>{_STYLE}</style>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#35608a"/></marker></defs>'
    )
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    yield from _supervisor()
    for name, (left, parts) in _PROCESSES.items():
        yield _rectangle(left, _BOX_TOP, _BOX_WIDTH, _BOX_HEIGHT)
        yield _text(left + 12, _BOX_TOP + 24, name, "name")
        for index, part in enumerate(parts):
            yield _text(left + 12, _BOX_TOP + 50 + 20 * index, part)
    (api, _), (tokenizer, _), (engine, _) = _PROCESSES.values()
    yield from _pair(0, api, ["HTTP request"], ["events or JSON"])
    yield _text(20, _BOX_TOP + 24, "Client", "name")
    yield from _pair(api + _BOX_WIDTH, tokenizer, _names(FromApi), _names(ToApi))
    yield from _pair(tokenizer + _BOX_WIDTH, engine, _names(ToEngine), _names(FromEngine))
    yield "</svg>"


def _supervisor() -> Iterator[str]:
    left, right = 150, 810 + _BOX_WIDTH
    yield _rectangle(left, _SUPERVISOR_TOP, right - left, _SUPERVISOR_HEIGHT)
    yield _text(left + 12, _SUPERVISOR_TOP + 27, "Supervisor", "name")
    sent, received = ", ".join(_names(ToChild)), ", ".join(_names(ToSupervisor))
    said = f"starts, watches, restarts, drains; sends {sent}; hears {received}"
    yield _text(left + 110, _SUPERVISOR_TOP + 27, said, "message")
    for start, _ in _PROCESSES.values():
        middle = start + _BOX_WIDTH // 2
        bottom = _SUPERVISOR_TOP + _SUPERVISOR_HEIGHT
        yield f'<path class="arrow control" d="M{middle} {bottom} L{middle} {_BOX_TOP - 2}"/>'


def _pair(left: int, right: int, there: Sequence[str], back: Sequence[str]) -> Iterator[str]:
    """One arrow in each direction, with the names of its messages beneath."""
    for top, start, end, names in ((_BOX_TOP + 40, left, right, there), (_BOX_TOP + 130, right, left, back)):
        gap = 4 if end > start else -4
        yield f'<path class="arrow" d="M{start + gap} {top} L{end - gap} {top}"/>'
        for index, name in enumerate(names):
            yield _text(left + 12 + 70 * (index % 2), top + 16 + 14 * (index // 2), name, "message")


def _names(union: object) -> list[str]:
    members = get_args(union) or (union,)
    return [member.__name__ for member in members]


def _rectangle(left: int, top: int, width: int, height: int) -> str:
    return f'<rect class="box" x="{left}" y="{top}" width="{width}" height="{height}" rx="8"/>'


def _text(left: int, top: int, text: str, style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text{named} x="{left}" y="{top}">{escape(text)}</text>'


if __name__ == "__main__":
    sys.stdout.write(picture())
