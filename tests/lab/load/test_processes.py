"""Starting, measuring and stopping processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluiceway_lab.load.client import LoadError, get
from sluiceway_lab.load.processes import family, own_server, stop, usage

NO_PROCESS = 2**22 + 1
"""Above the largest process id of Linux."""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child. Both wait for the end of their input."""
    code = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        yield process
        process.communicate()


def test_usage_is_that_of_the_process() -> None:
    used = usage(os.getpid())
    assert used is not None
    assert 0 < used.pss_bytes <= used.rss_bytes
    assert used.cpu_s > 0


def test_processor_time_of_threads_that_have_ended_counts() -> None:
    """Otherwise a server with a thread for each request would seem to need no time."""
    before = usage(os.getpid())
    spent: list[float] = []
    thread = threading.Thread(target=lambda: spent.append(_burn_s(0.1)))
    thread.start()
    thread.join()
    after = usage(os.getpid())
    assert before is not None and after is not None
    assert after.cpu_s - before.cpu_s >= spent[0] - 0.05


def _burn_s(wanted_s: float) -> float:
    """Use the processor, and return how long this thread did."""
    started_s = time.thread_time()
    while time.thread_time() - started_s < wanted_s:
        pass
    return time.thread_time() - started_s


def test_usage_is_unknown_when_there_is_no_such_process() -> None:
    assert usage(NO_PROCESS) is None


def test_family_is_a_process_and_all_below(child: subprocess.Popen[bytes]) -> None:
    while len(found := family(child.pid)) < 2:
        assert child.poll() is None
    assert child.pid in found and os.getpid() not in found
    assert all("python" in name for name in found.values())
    assert family(child.pid).keys() < family(os.getpid()).keys()


def test_family_is_empty_when_there_is_no_such_process() -> None:
    assert family(NO_PROCESS) == {}


def test_process_that_does_not_end_is_killed_with_all_below_it() -> None:
    ignoring = "trap '' TERM; (while true; do read -t 1 line < /dev/zero; done) & echo $!; wait; wait"
    with subprocess.Popen(["bash", "-c", ignoring], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        below = int(process.stdout.readline())
        stop(process, 0.05)
        assert process.stdout.read() == b"", "every process with this pipe has ended"
    assert process.returncode == -signal.SIGKILL
    assert below not in family(os.getpid())


def test_process_that_can_ends_by_itself(child: subprocess.Popen[bytes]) -> None:
    stop(child, 30.0)
    assert child.returncode == -signal.SIGTERM


def test_long_name_is_whole(tmp_path: Path) -> None:
    """The kernel cuts names after 15 characters, which would make processes of one server look the same."""
    program = tmp_path / "server-of-many-tokens"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        found = family(process.pid)
        process.communicate()
    assert found == {process.pid: "server-of-many-tokens"}


@pytest.mark.e2e
async def test_server_serves_and_leaves_nothing_behind() -> None:
    with own_server("fake", ["--max-running", "3"]) as server:
        assert await server.ready() > 0
        assert (await get(server.target, "/health/ready")).status == 200
        pids = family(server.pid)
        assert len(pids) >= 4
    assert not family(server.pid)
    with pytest.raises(LoadError):
        await get(server.target, "/health/ready")


async def test_server_that_ends_before_it_serves_says_why() -> None:
    with own_server("fake", ["--max-running", "0"]) as server:
        with pytest.raises(LoadError, match=r"ended with 2 before it served:\nerror: --max-running: must be"):
            await server.ready()


async def test_server_that_takes_too_long_is_given_up() -> None:
    with own_server("fake") as server:
        with pytest.raises(LoadError, match="does not serve after 0 s"):
            await server.ready(limit_s=0)
    assert not family(server.pid)


def test_server_is_stopped_when_this_process_gets_sigterm() -> None:
    with pytest.raises(SystemExit) as left:
        with own_server("fake") as server:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
    assert left.value.code == 143
    assert not family(server.pid)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
