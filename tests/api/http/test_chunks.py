"""Pieces of a body are written as chunks while there is room and a client."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sluiceway.api.http.chunks import ChunkWriter, KernelQueue, chunks_of, offer_chunks


class Transport:
    """Records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return 7

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *option: self.written.append(option[2])) if name == "socket" else None

    def abort(self) -> None:
        self.closing = True


def cycle(**changes: object) -> Any:
    """The part of a cycle of uvicorn that the writer uses."""
    fields = {"transport": Transport(), "flow": SimpleNamespace(write_paused=False), "disconnected": False}
    fields |= {"chunked_encoding": True, "expected_content_length": 0}
    return SimpleNamespace(**(fields | changes))


def test_a_piece_is_one_chunk_in_one_write() -> None:
    """https://www.rfc-editor.org/rfc/rfc9112#section-7.1: its length in hexadecimal goes before it."""
    of = cycle()
    ChunkWriter(of).write(b"data: seventeen\n\n")
    assert of.transport.written == [b"11\r\ndata: seventeen\n\n\r\n"]


def test_it_is_writable_while_there_is_room_and_a_client() -> None:
    """Each question looks again."""
    of = cycle()
    chunks = ChunkWriter(of)
    seen = []
    for is_paused in (False, True, False):
        of.flow.write_paused = is_paused
        seen.append(chunks.is_writable)
    assert seen == [True, False, True]


@pytest.mark.parametrize("changes", [{"disconnected": True}, {"closes": True}])
def test_it_is_not_writable_when_the_client_has_left(changes: dict[str, bool]) -> None:
    """The protocol knows it, or only the transport."""
    of = cycle(disconnected=changes.get("disconnected", False))
    of.transport.closing = changes.get("closes", False)
    assert not ChunkWriter(of).is_writable


def test_an_application_finds_the_extension() -> None:
    """Other servers offer none, or another one."""
    chunks = ChunkWriter(cycle())
    scope: dict[str, Any] = {}
    assert chunks_of(scope) is None
    assert chunks_of({"extensions": {"http.response.push": {}}}) is None
    offer_chunks(scope, chunks)
    assert chunks_of(scope) is chunks


def test_news_of_room_is_ignored_before_there_is_a_writer() -> None:
    """A server may call at any time."""
    ChunkWriter(cycle()).on_writable()


def test_held_bytes_count_only_when_the_transport_is_full() -> None:
    """After any write the loop has yet to pass bytes on. Only a full transport shows a slow client."""
    of = cycle()
    chunks = ChunkWriter(of)
    assert (chunks.held_bytes, chunks.unsent_bytes) == (0, 7)
    of.flow.write_paused = True
    assert chunks.held_bytes == 7


async def test_there_is_no_room_while_the_kernel_holds_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes count as held. The owner is called when they are sent."""
    unsent, told = iter([5000, 5000, 5000, 6000, 0, 0, 0]), asyncio.Event()
    monkeypatch.setattr(KernelQueue, "unsent_bytes", property(lambda queue: next(unsent)))
    of = cycle()
    chunks = ChunkWriter(of, unsent_bytes=4096)
    chunks.on_writable = told.set
    chunks.write(b"x" * 4096)
    assert (chunks.is_writable, chunks.held_bytes, chunks.unsent_bytes) == (False, 5000, 6007)
    await asyncio.wait_for(told.wait(), 10.0)
    assert (chunks.is_writable, chunks.held_bytes, chunks.unsent_bytes) == (True, 0, 7)


def test_a_connection_that_is_broken_off_holds_nothing() -> None:
    """The kernel does not linger: https://man7.org/linux/man-pages/man7/socket.7.html."""
    of = cycle()
    ChunkWriter(of).abort()
    assert of.transport.closing and of.transport.written == [b"\x01\0\0\0\0\0\0\0"]


def test_a_body_with_a_length_is_written_without_chunks() -> None:
    """Its bytes count against that length, as with `send`."""
    of = cycle(chunked_encoding=False, expected_content_length=10)
    piece = b"seven b"
    ChunkWriter(of).write(piece)
    assert of.transport.written[0] is piece and of.expected_content_length == 3
