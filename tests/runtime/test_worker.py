"""Worker pools with real child processes: each way in which a job can end, and the job after it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
import uvloop

from sluiceway.runtime.worker import (
    WorkerBusy,
    WorkerDied,
    WorkerError,
    WorkerFault,
    WorkerLimits,
    WorkerMemoryError,
    WorkerPool,
    WorkerResultError,
    WorkerTimeout,
)
from support.server import wait_until

TESTS = str(Path(__file__).parents[1])
JOBS = "support.worker_jobs:build"
MIB = 1 << 20

LONG_S = 500.0
"""Longer than any job takes, even on a busy machine."""


@pytest.fixture(autouse=True)
def children_find_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", TESTS)


@contextlib.asynccontextmanager
async def pool_of(entry: str = JOBS, init: bytes = b"", **limits: Any) -> AsyncIterator[WorkerPool]:
    pool = WorkerPool(entry, init, WorkerLimits(**{"deadline_s": LONG_S} | limits))
    try:
        yield pool
    finally:
        await pool.close()
        assert pool.pids == []


def is_running(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def locked(path: Path) -> TextIO:
    """Create a file that is locked until it is closed."""
    file = path.open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition, "the processes have changed", LONG_S)


async def test_a_job_is_done_in_another_process() -> None:
    """The entry was called once, with `init`."""
    async with pool_of(init=b"> ", n_children=1) as pool:
        assert await pool.run(b"echo hello") == b"> hello"
        assert await pool.run(b"echo") == b"> "
        assert int(await pool.run(b"pid")) == pool.pids[0] != os.getpid()
        assert await pool.run(b"n") == b"4"


async def test_large_jobs_and_results_are_passed_whole() -> None:
    """The socket takes only a part of them at a time."""
    payload = os.urandom(9 * MIB)
    async with pool_of(n_children=1) as pool:
        assert await pool.run(b"echo " + payload) == payload


async def test_children_have_a_lower_priority() -> None:
    async with pool_of(n_children=1, nice=7) as pool:
        assert int(await pool.run(b"nice")) == min(19, os.nice(0) + 7)


@pytest.mark.parametrize("job", [b"loop", b"hold"], ids=["in Python", "in C"])
async def test_a_job_over_its_time_is_killed(job: bytes) -> None:
    """The next job gets a new child."""
    async with pool_of(n_children=1, deadline_s=0.3) as pool:
        with pytest.raises(WorkerTimeout):
            await pool.run(job)
        assert pool.pids == []
        pool.start()
        await until(lambda: pool.pids)
    async with pool_of(n_children=1) as pool:
        assert await pool.run(b"echo x") == b"x"


async def test_a_job_over_its_memory_is_refused() -> None:
    """The limit counts what a child allocates after its start."""
    async with pool_of(n_children=1, memory_bytes=64 * MIB) as pool:
        assert await pool.run(b"take %d" % (32 * MIB)) == b"%d" % (32 * MIB)
        with pytest.raises(WorkerMemoryError):
            await pool.run(b"take %d" % (96 * MIB))
        assert pool.pids == []
        assert await pool.run(b"n") == b"1"


async def test_a_result_over_its_size_is_refused() -> None:
    """The child does the next job."""
    async with pool_of(n_children=1, result_bytes=4) as pool:
        assert await pool.run(b"echo four") == b"four"
        with pytest.raises(WorkerResultError):
            await pool.run(b"echo fives")
        assert await pool.run(b"n") == b"3"


async def test_a_child_that_dies_is_replaced() -> None:
    """During a job, or between two jobs."""
    async with pool_of(n_children=1) as pool:
        with pytest.raises(WorkerDied):
            await pool.run(b"die")
        first = int(await pool.run(b"pid"))
        os.kill(first, 9)
        await until(lambda: os.waitid(os.P_PID, first, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        assert int(await pool.run(b"pid")) != first


async def test_a_job_whose_child_dies_is_repeated_once_if_the_limits_allow_it(tmp_path: Path) -> None:
    started = tmp_path / "started"
    async with pool_of(n_children=1) as pool:
        with pytest.raises(WorkerDied):
            await pool.run(b"die_first %b" % bytes(started))
    started.unlink()
    async with pool_of(n_children=1, may_repeat=True) as pool:
        assert await pool.run(b"die_first %b" % bytes(started)) == b"2"
        with pytest.raises(WorkerDied):
            await pool.run(b"die")
        assert await pool.run(b"echo x") == b"x"


async def test_a_job_is_done_by_a_new_child_if_its_child_died_before_it_took_it() -> None:
    """The first child is stopped, so that the job waits in its socket, and then killed."""
    async with pool_of(n_children=1) as pool:
        first = int(await pool.run(b"pid"))
        os.kill(first, signal.SIGSTOP)
        job = asyncio.ensure_future(pool.run(b"n"))
        await until(lambda: pool.n_running == 1)
        for _ in range(3):  # until the job is written
            await asyncio.sleep(0)
        os.kill(first, signal.SIGKILL)
        assert await job == b"1"
        assert pool.pids != [first]


@pytest.mark.parametrize("may_repeat", [False, True])
async def test_a_job_is_given_to_a_second_child_but_not_to_a_third(tmp_path: Path, may_repeat: bool) -> None:
    starts = tmp_path / "starts"
    async with pool_of("support.worker_jobs:build_deaf", bytes(starts), n_children=1, may_repeat=may_repeat) as pool:
        with pytest.raises(WorkerDied):
            await pool.run(b"echo x")
        assert starts.read_text() == "started\n" * 2


async def test_a_job_that_raises_reports_its_traceback() -> None:
    """The child does the next job."""
    async with pool_of(n_children=1) as pool:
        with pytest.raises(WorkerFault, match=r"(?s)Traceback.*ValueError: strange"):
            await pool.run(b"strange")
        assert await pool.run(b"n") == b"2"


@pytest.mark.parametrize("entry", ["support.worker_jobs:build_none", "support.no_such_module:build"])
async def test_a_child_that_cannot_start_says_why(entry: str) -> None:
    async with pool_of(entry, n_children=1) as pool:
        with pytest.raises(WorkerFault, match="no such thing|no_such_module"):
            await pool.run(b"echo x")


async def test_a_process_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    async with pool_of(n_children=1) as pool:
        with pytest.raises(WorkerDied, match="could be started"):
            await pool.run(b"echo x")


async def test_a_small_job_does_not_wait_for_large_ones(tmp_path: Path) -> None:
    """One child stays free for small jobs, however many large jobs wait."""
    gate = locked(tmp_path / "gate")
    large = b"wait %s" % gate.name.encode()
    async with pool_of(n_children=2, large_bytes=len(large)) as pool:
        running = [asyncio.ensure_future(pool.run(large)) for _ in range(3)]
        for n in range(3):
            assert await pool.run(b"echo %d" % n) == b"%d" % n
        assert (pool.n_running, pool.n_waiting) == (1, 2)
        gate.close()
        assert await asyncio.gather(*running) == [b"waited"] * 3


async def test_waiting_jobs_are_bounded_in_number_and_in_bytes(tmp_path: Path) -> None:
    """A refused job takes no room."""
    gate = locked(tmp_path / "gate")
    async with pool_of(n_children=1, max_waiting=2, max_waiting_bytes=1000) as pool:
        tasks = [asyncio.ensure_future(pool.run(b"wait %s" % gate.name.encode()))]
        await until(lambda: pool.n_running == 1)
        tasks.append(asyncio.ensure_future(pool.run(b"echo " + b"x" * 600)))
        await asyncio.sleep(0)
        with pytest.raises(WorkerBusy):
            await pool.run(b"echo " + b"x" * 600)
        tasks.append(asyncio.ensure_future(pool.run(b"echo")))
        await asyncio.sleep(0)
        with pytest.raises(WorkerBusy):
            await pool.run(b"echo")
        gate.close()
        assert await asyncio.gather(*tasks) == [b"waited", b"x" * 600, b""]


async def test_a_cancelled_caller_drops_its_job(tmp_path: Path) -> None:
    """A job that runs is finished, and its result ignored."""
    gate = locked(tmp_path / "gate")
    async with pool_of(n_children=1) as pool:
        running, waiting = (asyncio.ensure_future(pool.run(b"wait %s" % gate.name.encode())) for _ in range(2))
        await until(lambda: (pool.n_running, pool.n_waiting) == (1, 1))
        waiting.cancel()
        await asyncio.wait([waiting])
        assert pool.n_waiting == 0
        running.cancel()
        await asyncio.wait([running])
        last = asyncio.ensure_future(pool.run(b"n"))
        gate.close()
        assert await last == b"2"


async def test_a_pool_that_closes_ends_all_jobs() -> None:
    """Running and waiting jobs end, and later ones are refused."""
    pool = WorkerPool(JOBS, limits=WorkerLimits(n_children=1))
    jobs = [asyncio.ensure_future(pool.run(b"loop")) for _ in range(3)]
    await until(lambda: pool.pids)
    (pid,) = pool.pids
    await pool.close()
    assert [type(error) for error in await asyncio.gather(*jobs, return_exceptions=True)] == [WorkerDied] * 3
    assert not is_running(pid)
    with pytest.raises(WorkerDied):
        await pool.run(b"echo x")


@pytest.mark.parametrize("n_loop_rounds", [0, 1, 2, 3])
async def test_a_pool_that_closes_while_a_child_starts_leaves_none(n_loop_rounds: int) -> None:
    """The job that it was started for is not done."""
    pool = WorkerPool(JOBS, limits=WorkerLimits(n_children=1, deadline_s=3600.0))
    job = asyncio.ensure_future(pool.run(b"loop"))
    for _ in range(n_loop_rounds):
        await asyncio.sleep(0)
    await pool.close()
    with pytest.raises(WorkerDied):
        await job
    assert pool.pids == []


async def test_children_can_be_started_before_there_is_work() -> None:
    """A second call of `start` changes nothing."""
    async with pool_of() as pool:
        assert pool.pids == []
        pool.start()
        pool.start()
        await until(lambda: len(pool.pids) == 2)
        before = pool.pids
        assert await pool.run(b"echo x") == b"x"
        assert pool.pids == before


def test_a_pool_runs_in_any_loop_of_any_thread() -> None:
    """With uvloop or asyncio, in the main thread or in another."""
    results: list[bytes] = []

    async def work() -> None:
        async with pool_of(n_children=1) as pool:
            results.append(await pool.run(b"echo " + b"x" * MIB))

    uvloop.run(work())
    thread = threading.Thread(target=lambda: uvloop.run(work()))
    thread.start()
    thread.join()
    other = threading.Thread(target=lambda: asyncio.run(work()))
    other.start()
    other.join()
    assert [len(result) for result in results] == [MIB] * 3


PARENT = """
import asyncio, sys
from sluiceway.runtime.worker import WorkerLimits, WorkerPool

async def main():
    pool = WorkerPool("support.worker_jobs:build", b"", WorkerLimits(n_children=1, deadline_s=float(sys.argv[2])))
    print(int(await pool.run(b"pid")), flush=True)
    if sys.argv[1] != "idle":
        await pool.run(sys.argv[1].encode())
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize(("job", "deadline_s"), [("idle", "3600"), ("loop", "3600"), ("hold", "5")])
async def test_children_do_not_outlive_their_parent(job: str, deadline_s: str) -> None:
    """A child that is idle or runs Python code exits soon. A child in C code exits at the deadline of its job."""
    command = [sys.executable, "-c", PARENT, job, deadline_s]
    parent = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    await parent.wait()
    await until(lambda: not is_running(child))


def test_every_error_is_a_worker_error() -> None:
    """One handler can catch them all."""
    for error in (WorkerBusy, WorkerTimeout, WorkerMemoryError, WorkerResultError, WorkerDied, WorkerFault):
        assert issubclass(error, WorkerError)
