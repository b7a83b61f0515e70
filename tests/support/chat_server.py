"""A server of the OpenAI protocol with scripted answers. It can pause in the middle of an answer."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.loopback_http import QuietHandler, serving


def delta(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}) + "\n\n"


DONE = "data: [DONE]\n\n"


@dataclass
class Script:
    """`answers` has one answer per request, each a list of pieces to write; None waits until `gate` is set."""

    answers: list[Sequence[str | None]] = field(default_factory=list)
    models: bytes = b'{"object": "list", "data": [{"id": "first"}, {"id": "second"}]}'
    refusal: tuple[int, bytes] | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@contextlib.contextmanager
def chat_server(script: Script) -> Iterator[str]:
    """Yields the server's root."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200 if self.path == "/v1/models" else 404, script.models)

        def do_POST(self) -> None:
            script.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            script.keys.append(self.headers.get("Authorization"))
            if script.refusal:
                self.reply(*script.refusal)
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            with contextlib.suppress(OSError):
                self._write(script.answers.pop(0))

        def _write(self, parts: Sequence[str | None]) -> None:
            for part in parts:
                if part is None:
                    script.gate.wait(30)
                else:
                    self.wfile.write(part.encode())

    with serving(Handler) as root:
        yield root
    script.gate.set()
