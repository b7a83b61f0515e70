"""Sockets whose queues have no limit, and receivers in an asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
import zmq

from sluiceway.ipc.pipes.sockets import AsyncReceiver, attach, waiting

loops = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
Loop = Callable[[], asyncio.AbstractEventLoop]


def test_waiting_yields_all_messages_in_order() -> None:
    """More than ZeroMQ's default limit of a thousand. When there are none, it does not wait."""
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


def test_unread_messages_do_not_delay_the_end_of_the_context() -> None:
    context: zmq.Context[Any] = zmq.Context()
    sender: zmq.Socket[bytes] = zmq.Socket(context, zmq.PUSH)
    attach(sender, "ipc:///nowhere/to/be/found", bind=False)
    sender.send(b"lost", zmq.NOBLOCK)
    sender.close()
    context.term()


def run(loop: Loop, scenario: Callable[[AsyncReceiver, zmq.Socket[bytes]], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario in this kind of loop, with the two ends of a pipe that goes both ways."""

    async def connected() -> None:
        context: zmq.Context[Any] = zmq.Context()
        near, far = zmq.Socket(context, zmq.PAIR), zmq.Socket(context, zmq.PAIR)
        attach(near, "inproc://pipe", bind=True)
        attach(far, "inproc://pipe", bind=False)
        receiver = AsyncReceiver(near)
        try:
            async with asyncio.timeout(120.0):
                await scenario(receiver, far)
        finally:
            receiver.close()
            near.close()
            far.close()
            context.term()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(connected())


@loops
def test_a_receiver_waits_for_each_message(loop: Loop) -> None:
    """The message may be there already, or come while the receiver waits."""

    async def scenario(receiver: AsyncReceiver, far: zmq.Socket[bytes]) -> None:
        far.send(b"before")
        assert await receiver.recv() == b"before"
        for n in range(100):
            receiving = asyncio.create_task(receiver.recv())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            far.send(b"%d" % n)
            assert await receiving == b"%d" % n

    run(loop, scenario)


@loops
def test_a_socket_that_is_never_empty_lets_other_tasks_run(loop: Loop) -> None:
    """They run between two messages."""

    async def scenario(receiver: AsyncReceiver, far: zmq.Socket[bytes]) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        for _ in range(50):
            far.send(b"x")
        other_task = asyncio.create_task(other())
        for _ in range(50):
            await receiver.recv()
        other_task.cancel()
        assert turns >= 49

    run(loop, scenario)


@loops
def test_a_message_without_a_receiving_task_does_not_keep_the_loop_busy(loop: Loop) -> None:
    """While no task receives, the loop does not watch the descriptor. The next task that receives gets the message."""

    async def scenario(receiver: AsyncReceiver, far: zmq.Socket[bytes]) -> None:
        receiving = asyncio.create_task(receiver.recv())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        receiving.cancel()
        far.send(b"x")
        for _ in range(10):
            await asyncio.sleep(0)
        assert not receiver.is_watching
        assert await receiver.recv() == b"x"

    run(loop, scenario)


@loops
def test_a_send_on_the_same_socket_loses_no_message(loop: Loop) -> None:
    """A send consumes the signal of a new message, so the descriptor stays silent. `poke` makes the receiver look."""

    async def scenario(receiver: AsyncReceiver, far: zmq.Socket[bytes]) -> None:
        receiving = asyncio.create_task(receiver.recv())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        far.send(b"x")
        assert int(receiver.socket.get(zmq.EVENTS)) & zmq.POLLIN  # a send does this too, and consumes the signal
        receiver.poke()
        assert await receiving == b"x"

    run(loop, scenario)
