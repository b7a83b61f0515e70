"""A pool of child processes for jobs whose input decides how much time and memory they need: `WorkerPool`.

Parsing JSON, validating it and rendering templates hold the interpreter's lock, so a thread would not keep the event
loop free. A pool runs jobs of one kind in child processes of lower priority. Each job has limits of time, memory and
size::

    pool = WorkerPool("sluiceway.tokenizer.text.rendering:build", init=template, limits=WorkerLimits(deadline_s=2.0))
    result = await pool.run(job)    # bytes in, in one part or several; bytes out
    await pool.close()

`entry` names a function that a child calls once, with `init`. It returns the function that does a job. A child imports
the module of the entry and what that imports, nothing else. Errors in the input belong into the result: an exception
that leaves a job is a bug.

`run` raises a `WorkerError`: `WorkerBusy` (too many jobs wait), `WorkerTimeout`, `WorkerMemoryError`,
`WorkerResultError` (the result is too large), `WorkerDied` (a child died, or cannot be started), `WorkerFault` (the job
raised an exception). A child that exceeds its time or its memory is killed, and another is started for the next job. A
child that dies before it has taken a job, for example because the kernel needed memory, is replaced, and the job is
given once more to the new child. When a caller is cancelled, its job is dropped if it waits; if it runs, its result is
ignored.

A pool belongs to the event loop in which it is used, which may run in any thread. It starts children when there is work
for them, or with `start`. They are new interpreters and not forks, so threads of the parent do no harm. A child ends
soon after its parent if its job is Python code, and when the job's time is over if it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sluiceway.errors import SluicewayError

WorkFunction = Callable[[bytes], bytes]
"""Does one job."""

_HEAD = struct.Struct("<cQ")
"""The head of a frame: its kind, and the length of its body."""

_JOB, _READY, _RESULT, _MEMORY, _TOO_LARGE, _FAULT = b"J", b"R", b"r", b"m", b"l", b"f"

_TAKEN = b"t"
"""Sent by a child as soon as it has read the head of a job."""

_START_S = 60.0
"""Time for an interpreter to start and to import what it needs, on a busy machine."""

_ALARM_MARGIN_S = 2
"""The kernel ends a child that exceeds its deadline by this time, if its parent did not kill it."""


class WorkerError(SluicewayError):
    """A job was not done."""


class WorkerBusy(WorkerError):
    """Too many jobs, or too many bytes of them, wait already."""


class WorkerTimeout(WorkerError):
    """The job exceeded its deadline, and its child was killed."""


class WorkerMemoryError(WorkerError):
    """The job needed more memory than the limit. Its child was replaced."""


class WorkerResultError(WorkerError):
    """The result is larger than the limit."""


class WorkerDied(WorkerError):
    """The child died during the job, or could not be started."""


class WorkerFault(WorkerError):
    """The job raised an exception. The message has its traceback, which is for the log and never for a client."""


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a pool. `memory_bytes` is what a child may allocate after it has become ready."""

    deadline_s: float = 10.0
    memory_bytes: int = 1 << 30
    result_bytes: int = 64 << 20
    n_children: int = 2
    max_waiting: int = 64
    max_waiting_bytes: int = 128 << 20
    """The limit for all jobs that wait. A single job may be larger if no other waits."""
    large_bytes: int = 256 << 10
    """Jobs of this size or more leave one child free for smaller jobs."""
    nice: int = 5
    may_repeat: bool = False
    """True when a job is repeated if its child dies during it, because the job is probably not the cause."""


class _PoolJob:
    """A job that waits or runs, with the future of its caller."""

    __slots__ = ("future", "n_bytes", "parts")

    def __init__(self, parts: Sequence[bytes], future: asyncio.Future[bytes]) -> None:
        self.parts = parts
        self.n_bytes = sum(map(len, parts))
        self.future = future


class WorkerPool:
    """Runs jobs in child processes, within limits of time, memory and size.

    Jobs start in their order, but large ones leave one child free for small ones. The docstring of the module says what
    a caller can rely on.
    """

    def __init__(self, entry: str, init: bytes = b"", limits: WorkerLimits | None = None) -> None:
        self._limits = limits or WorkerLimits()
        self._slots = [_Slot(entry, init, self._limits) for _ in range(self._limits.n_children)]
        self._running: dict[_Slot, _PoolJob | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[_PoolJob] = deque()
        self._waiting_bytes = 0
        self._is_closed = False

    @property
    def n_waiting(self) -> int:
        """The number of jobs that wait for a child."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """The number of jobs that run in a child, including those whose caller was cancelled."""
        return sum(job is not None for job in self._running.values())

    @property
    def pids(self) -> list[int]:
        """The process ids of the children that run now."""
        return [slot.pid for slot in self._slots if slot.pid is not None]

    def start(self) -> None:
        """Start the children in the background, so that the first job does not wait for them."""
        for slot in self._slots:
            if slot not in self._running and slot.pid is None:
                self._occupy(slot, None)

    async def run(self, *parts: bytes) -> bytes:
        """Run a job and return its result. The parts of the job are not joined here. Raises `WorkerError`."""
        if self._is_closed:
            raise WorkerDied("the pool is closed")
        job = _PoolJob(parts, asyncio.get_running_loop().create_future())
        n_bytes = self._waiting_bytes + job.n_bytes
        if len(self._waiting) >= self._limits.max_waiting or (
            self._waiting and n_bytes > self._limits.max_waiting_bytes
        ):
            raise WorkerBusy("too many jobs wait")
        self._waiting.append(job)
        self._waiting_bytes = n_bytes
        self._dispatch()
        try:
            return await job.future
        except asyncio.CancelledError:
            if job in self._waiting:
                self._waiting.remove(job)
                self._waiting_bytes -= job.n_bytes
            raise

    async def close(self) -> None:
        """End all children. The callers of jobs that run or wait get `WorkerDied`."""
        self._is_closed = True
        for slot in self._slots:
            slot.close()
        for job in self._waiting:
            if not job.future.done():
                job.future.set_exception(WorkerDied("the pool was closed"))
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._tasks:
            await asyncio.wait(self._tasks)
        for slot in self._slots:
            await slot.ended()

    def _dispatch(self) -> None:
        """Give waiting jobs to free children."""
        while (free := self._free_slot()) is not None and (job := self._next_job()) is not None:
            self._waiting.remove(job)
            self._waiting_bytes -= job.n_bytes
            self._occupy(free, job)

    def _free_slot(self) -> _Slot | None:
        free = [slot for slot in self._slots if slot not in self._running]
        return min(free, key=lambda slot: slot.pid is None, default=None)

    def _next_job(self) -> _PoolJob | None:
        large_bytes = self._limits.large_bytes
        n_large = sum(job is not None and job.n_bytes >= large_bytes for job in self._running.values())
        has_room_for_large = n_large < max(1, len(self._slots) - 1)
        return next((job for job in self._waiting if has_room_for_large or job.n_bytes < large_bytes), None)

    def _occupy(self, slot: _Slot, job: _PoolJob | None) -> None:
        self._running[slot] = job
        task = asyncio.ensure_future(self._serve(slot, job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, slot: _Slot, job: _PoolJob | None) -> None:
        try:
            if job is None:
                await slot.start()
            else:
                result = await slot.do(job.parts)
                if not job.future.done():
                    job.future.set_result(result)
        except WorkerError as error:
            if job is not None and not job.future.done():
                job.future.set_exception(error)
        except BaseException:  # the loop ends, or no process can be made: no caller may wait for ever
            slot.kill()
            if job is not None and not job.future.done():
                job.future.set_exception(WorkerDied("the job was abandoned"))
            raise
        finally:
            del self._running[slot]
            if not self._is_closed:
                self._dispatch()


class _Slot:
    """Runs one child at a time, which does one job at a time, and replaces it after its end."""

    def __init__(self, entry: str, init: bytes, limits: WorkerLimits) -> None:
        self._entry = entry
        self._init = init
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._reaping: asyncio.Future[int] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._is_taken = False
        """True once the child has begun to read the job that it was sent."""
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start a child and wait until it is ready. Raises `WorkerError`."""
        self._check_open()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            command = [sys.executable, "-m", "sluiceway.runtime.worker", str(theirs.fileno())]
            # In a thread: the system call waits until the new program is loaded.
            spawning = asyncio.get_running_loop().run_in_executor(
                None, lambda: subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
            )
            try:
                self._process = await asyncio.shield(spawning)
            except OSError as error:
                raise WorkerDied(f"no child could be started: {error.strerror}") from error
            except asyncio.CancelledError:
                spawning.add_done_callback(_kill_spawned)
                raise
            self._check_open()
            # Streams take another descriptor, so that this one is closed here whatever happens.
            self._reader, self._writer = await asyncio.open_unix_connection(sock=ours.dup())
        order = msgspec.msgpack.encode((self._entry, self._init, self._limits))
        await self._exchange([order], _START_S)

    def _check_open(self) -> None:
        """Raise `WorkerDied` if the pool was closed, perhaps while a child was starting."""
        if self._is_closed:
            self.kill()
            raise WorkerDied("the pool was closed")

    async def do(self, parts: Sequence[bytes]) -> bytes:
        """Do one job. Raises `WorkerError`.

        If its child dies, a second child does the job, unless the job was taken and may not be repeated.
        """
        if self._process is not None and self._process.poll() is not None:
            self.kill()  # it died between two jobs
        try:
            if self._process is None:
                await self.start()
            return await self._exchange(parts, self._limits.deadline_s)
        except WorkerDied:
            if self._is_taken and not self._limits.may_repeat:  # the job itself may be the cause
                raise
        await self.start()
        return await self._exchange(parts, self._limits.deadline_s)

    async def _exchange(self, parts: Sequence[bytes], timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                kind, answer = await self._ask(parts)
        except TimeoutError:
            self.kill()
            raise WorkerTimeout(f"not done after {timeout_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            self.kill()
            raise WorkerDied(f"the child ended with {await self.ended()}") from None
        except asyncio.CancelledError:
            self.kill()
            raise
        if kind == _MEMORY:
            self.kill()
            raise WorkerMemoryError(f"needs more than {self._limits.memory_bytes} bytes of memory")
        if kind == _TOO_LARGE:
            raise WorkerResultError(f"the result has more than {self._limits.result_bytes} bytes")
        if kind == _FAULT:
            raise WorkerFault(answer.decode("utf-8", "replace"))
        return answer

    async def _ask(self, parts: Sequence[bytes]) -> tuple[bytes, bytes]:
        assert self._reader is not None and self._writer is not None
        self._is_taken = False
        # Reads while it writes: should writing fail, this has seen whether the child had taken the job.
        answering = asyncio.ensure_future(self._read_answer(self._reader))
        answering.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            self._writer.write(_HEAD.pack(_JOB, sum(map(len, parts))))
            for part in parts:
                self._writer.write(part)
                await self._writer.drain()
            return await answering
        finally:
            answering.cancel()

    async def _read_answer(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        await reader.readexactly(len(_TAKEN))
        self._is_taken = True
        kind, n_bytes = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return kind, await reader.readexactly(n_bytes) if n_bytes else b""

    def kill(self) -> None:
        """Kill the child, if there is one. `ended` waits for its end."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            # In a thread: the kernel needs some time to free a gigabyte.
            self._reaping = asyncio.get_running_loop().run_in_executor(None, process.wait)

    def close(self) -> None:
        """Kill the child, even one that is still starting, and start no other."""
        self._is_closed = True
        self.kill()

    async def ended(self) -> int | None:
        """Wait for the end of the child that was killed last, and return its exit code; None if none was killed."""
        return None if self._reaping is None else await asyncio.shield(self._reaping)


def _kill_spawned(spawning: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    if not spawning.cancelled() and spawning.exception() is None:
        spawning.result().kill()
        spawning.result().wait()


# The child's side.


def serve(connection: socket.socket) -> None:
    """Do jobs until the parent closes the connection: the main function of a child."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides when to leave
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends the process, whatever it is doing
    _leave_with_parent(connection)
    order = _receive(connection)
    if order is None:
        return
    entry, init, limits = msgspec.msgpack.decode(order, type=tuple[str, bytes, WorkerLimits])
    with contextlib.suppress(OSError):
        os.nice(limits.nice)
    try:
        module, _, name = entry.partition(":")
        work: WorkFunction = getattr(importlib.import_module(module), name)(init)
        _limit_memory(limits.memory_bytes)
    except Exception:
        _send(connection, _FAULT, traceback.format_exc().encode("utf-8", "replace"))
        return
    _send(connection, _READY, b"")
    while (payload := _receive(connection)) is not None:
        kind, answer = _outcome(work, payload, limits)
        del payload
        _send(connection, kind, answer)
        del answer


def _outcome(work: WorkFunction, payload: bytes, limits: WorkerLimits) -> tuple[bytes, bytes]:
    signal.alarm(int(limits.deadline_s) + _ALARM_MARGIN_S)
    try:
        result = work(payload)
    except MemoryError:
        return _MEMORY, b""
    except Exception:
        return _FAULT, traceback.format_exc().encode("utf-8", "replace")
    finally:
        signal.alarm(0)
    return (_RESULT, result) if len(result) <= limits.result_bytes else (_TOO_LARGE, b"")


def _limit_memory(more_bytes: int) -> None:
    """Limit the address space, since the kernel enforces no limit of resident memory."""
    import resource

    with open("/proc/self/statm", "rb") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    limit = used + more_bytes if most == resource.RLIM_INFINITY else min(used + more_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def _leave_with_parent(connection: socket.socket) -> None:
    """End this process when the parent closes its end or dies, also in the middle of a job."""
    hung_up: Any = select.poll()
    hung_up.register(connection, select.POLLRDHUP)

    def watch() -> None:
        hung_up.poll()
        os._exit(0)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _receive(connection: socket.socket) -> bytes | None:
    """Return the next job; None when the parent has closed the connection."""
    head = _receive_exactly(connection, _HEAD.size)
    if head is None:
        return None
    connection.sendall(_TAKEN)
    return _receive_exactly(connection, _HEAD.unpack(head)[1])


def _receive_exactly(connection: socket.socket, n_bytes: int) -> bytes | None:
    received = bytearray(n_bytes)
    rest = memoryview(received)
    while rest:
        n = connection.recv_into(rest)
        if n == 0:
            return None
        rest = rest[n:]
    rest.release()
    return bytes(received)


def _send(connection: socket.socket, kind: bytes, answer: bytes) -> None:
    connection.sendall(_HEAD.pack(kind, len(answer)))
    connection.sendall(answer)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as parent, contextlib.suppress(OSError):
        serve(parent)
