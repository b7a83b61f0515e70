"""An HTTP/1.1 client on a bare socket. It can do what client libraries cannot: reset, stall, send half a body."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

_READ_BYTES = 65_536


@dataclass
class RawAnswer:
    """A complete answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RawConnection:
    """One connection to a server on this machine. Every wait ends with `TimeoutError` after `timeout_s`."""

    port: int
    timeout_s: float = 120.0
    receive_buffer_bytes: int | None = None
    """SO_RCVBUF, set before connecting. With a small one the server soon notices that the client does not read."""
    _socket: socket.socket = field(init=False)
    _pending: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if self.receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
        self._socket.settimeout(self.timeout_s)
        self._socket.connect(("127.0.0.1", self.port))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    # Sending.

    def send(self, raw: bytes) -> None:
        self._socket.sendall(raw)

    def request(
        self, method: str, path: str, body: bytes | object | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole request. A body that is not bytes is sent as JSON."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.send(self.head(method, path, {"Content-Length": str(len(raw))} | dict(headers or {})) + raw)

    def request_in_chunks(self, path: str, chunks: Iterable[bytes], *, ends: bool = True) -> None:
        """POST a body of unknown length, chunk by chunk; with `ends` False the last chunk never comes."""
        self.send(self.head("POST", path, {"Transfer-Encoding": "chunked"}))
        for chunk in chunks:
            self.send(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if ends:
            self.send(b"0\r\n\r\n")

    @staticmethod
    def head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
        """Request line and headers, with the blank line."""
        lines = {"Host": "127.0.0.1", "Content-Type": "application/json"} | dict(headers)
        return "".join(
            [f"{method} {path} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in lines.items()), "\r\n"]
        ).encode()

    # Receiving.

    def read_some(self, n_bytes: int = _READ_BYTES) -> bytes:
        """The next bytes, at most `n_bytes`; `b""` when the server has closed."""
        if self._pending:
            raw, self._pending = self._pending[:n_bytes], self._pending[n_bytes:]
            return raw
        return self._socket.recv(n_bytes)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the next answer."""
        lines = self._read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, separator, value = line.partition(":")
            if separator:
                headers[name.lower()] = value.strip()
        return int(lines[0].split()[1]), headers

    def read_answer(self) -> RawAnswer:
        """The next answer, complete."""
        status, headers = self.read_head()
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.read_chunks())
        else:
            body = self._read_exactly(int(headers.get("content-length", "0")))
        return RawAnswer(status, headers, body)

    def read_chunks(self) -> Iterator[bytes]:
        """The chunks of a chunked body, up to its end. `ConnectionError` if the server closes before that."""
        while n_bytes := int(self._read_until(b"\r\n"), 16):
            yield self._read_exactly(n_bytes + 2)[:-2]
        self._read_exactly(2)

    def read_events(self) -> Iterator[str]:
        """The data of the server-sent events of a stream, `[DONE]` included, up to the end of the body."""
        buffer = b""
        for chunk in self.read_chunks():
            buffer += chunk
            while b"\n\n" in buffer:
                block, buffer = buffer.split(b"\n\n", 1)
                for line in block.split(b"\n"):
                    if line.startswith(b"data: "):
                        yield line[len(b"data: ") :].decode()

    # Leaving.

    def finish(self) -> None:
        """Close the connection (FIN)."""
        self._socket.close()

    def half_close(self) -> None:
        """Close the sending side, and keep reading."""
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Reset the connection (RST)."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def _read_until(self, end: bytes) -> bytes:
        while end not in self._pending:
            self._fill()
        raw, self._pending = self._pending.split(end, 1)
        return raw

    def _read_exactly(self, n_bytes: int) -> bytes:
        while len(self._pending) < n_bytes:
            self._fill()
        raw, self._pending = self._pending[:n_bytes], self._pending[n_bytes:]
        return raw

    def _fill(self) -> None:
        raw = self._socket.recv(_READ_BYTES)
        if not raw:
            raise ConnectionError("the server closed the connection")
        self._pending += raw
