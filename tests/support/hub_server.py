"""A model hub of one repository, with the two answers and the headers that the hub client reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from support.loopback_http import QuietHandler, serving

REPO = "org/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"not needed",
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "model.safetensors": b"\x08\0\0\0\0\0\0\0{}      " + bytes(4000),
    "model.bin": b"not needed either",
    "tiny.gguf": b"GGUF" + bytes(100),
}


@dataclass
class Hub:
    """A repository. `damaged` names a file with a wrong checksum; `fetched` has the paths of the sent files."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    damaged: str | None = None
    info_status: int = 200
    error_code: str | None = None
    fetched: list[str] = field(default_factory=list)

    def etag(self, name: str) -> str:
        content = self.files[name]
        if _is_large(name):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()

    def tree(self) -> list[dict[str, object]]:
        return [self._entry(name) for name in self.files]

    def _entry(self, name: str) -> dict[str, object]:
        size = len(self.files[name])
        entry: dict[str, object] = {"type": "file", "path": name, "size": size, "oid": self.etag(name)}
        return entry | ({"lfs": {"oid": self.etag(name), "size": size, "pointerSize": 130}} if _is_large(name) else {})


def _is_large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf"))


@contextlib.contextmanager
def model_hub(hub: Hub) -> Iterator[str]:
    """Run the hub, and yield its endpoint."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path.startswith(f"/api/models/{REPO}/tree/"):
                self.reply(200, json.dumps(hub.tree()).encode())
            elif path.startswith("/api/models/"):
                self._send_info()
            else:
                self._send_file(path.removeprefix(f"/{REPO}/resolve/").partition("/")[2])

        do_HEAD = do_GET

        def _send_info(self) -> None:
            siblings = [{"rfilename": name} for name in hub.files]
            info = {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            code = {"X_Error_Code": hub.error_code} if hub.error_code else {}
            self.reply(hub.info_status, json.dumps(info).encode(), **code)

        def _send_file(self, name: str) -> None:
            body = hub.files[name]
            if self.command == "GET":
                hub.fetched.append(name)
            if name == hub.damaged:
                body = bytes(len(body))
            self.reply(200, body, ETag=f'"{hub.etag(name)}"', X_Repo_Commit=COMMIT)

    with serving(Handler) as root:
        yield root
