"""Sockets without marks."""

from __future__ import annotations

from typing import Any

import zmq

from sluiceway.wire.sockets import attach, waiting


def test_what_was_sent_is_waiting_in_order() -> None:
    """More than the usual mark of a thousand; then nothing, without waiting for more."""
    context: zmq.Context[Any] = zmq.Context()
    sender, receiver = zmq.Socket(context, zmq.PUSH), zmq.Socket(context, zmq.PULL)
    attach(receiver, "inproc://pipe", bind=True)
    attach(sender, "inproc://pipe", bind=False)
    sent = [str(i).encode() for i in range(5_000)]
    for raw in sent:
        sender.send(raw, zmq.NOBLOCK)
    assert list(waiting(receiver)) == sent
    assert list(waiting(receiver)) == []
    sender.close()
    receiver.close()
    context.term()


def test_what_nobody_reads_holds_nobody_up() -> None:
    """The context ends at once, whatever is under way."""
    context: zmq.Context[Any] = zmq.Context()
    sender: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
    attach(sender, "ipc:///nowhere/to/be/found", bind=False)
    sender.send(b"lost", zmq.NOBLOCK)
    sender.close()
    context.term()
