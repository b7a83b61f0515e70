"""A real `sluiceway serve` as a child process, seen from outside: its port, log, statistics and processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from support.raw_http import RawConnection

START_S = 300.0
"""A busy machine with two cores imports torch slowly. A test waits this long only if something fails."""
SETTLE_S = 120.0
POLL_S = 0.02

FAKE_STEP_S = 0.002
"""The step time of the fake model: so slow that an endless answer takes longer than every test."""


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = SETTLE_S) -> None:
    """Poll until the condition holds. After `timeout_s` fail with a message that names the condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{timeout_s:.0f} s passed without: {what}")
        time.sleep(POLL_S)


def is_alive(pid: int) -> bool:
    """True if this process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(pid: int) -> set[int]:
    """Every living process below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


def _environment() -> dict[str, str]:
    """The environment of the tests without the user's settings of the server, except the folder of models."""
    kept = {"SLUICEWAY_CACHE_DIR", "SLUICEWAY_OFFLINE"}
    own = {name: value for name, value in os.environ.items() if name in kept or not name.startswith("SLUICEWAY_")}
    return own | {"SLUICEWAY_FAKE_STEP": str(FAKE_STEP_S)}


class Server:
    """Starts on construction; call `wait_ready` before use. `stop`, or the end of a `with`, leaves no process."""

    def __init__(self, model: str = "fake", *flags: str) -> None:
        self.port = free_port()
        self.served_name: str | None = None
        self._log: list[str] = []
        command = [str(Path(sys.executable).parent / "sluiceway"), "serve", model, "--port", str(self.port), *flags]
        self.process = subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """Everything that the server's processes have written."""
        return "".join(self._log)

    # Life.

    def wait_ready(self) -> None:
        """Wait until the server serves. Kills it if it does not."""
        try:
            wait_until(lambda: self.process.poll() is not None or self.is_ready(), "the server is ready", START_S)
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}:\n{self.log}"
        except BaseException:
            self._kill(descendants(self.process.pid))
            raise

    def is_ready(self) -> bool:
        return self.status_of("/health/ready") == 200

    def wait_exit(self, timeout_s: float = SETTLE_S) -> int:
        """Wait for the end of the process, and return its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def stop(self) -> None:
        """Stop it as a user would, with a second signal if needed, and check that no process remains."""
        family = descendants(self.process.pid)
        try:
            for _ in range(2):
                if self.process.poll() is None:
                    self.process.send_signal(signal.SIGTERM)
            self.wait_exit()
            wait_until(lambda: not any(map(is_alive, family)), "every child process is gone")
        finally:
            self._kill(family)

    def _kill(self, family: set[int]) -> None:
        for pid in {pid for pid in family if is_alive(pid)}:
            os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._log.append(line)

    # Accounts.

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SETTLE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Status and decoded body of a JSON request."""
        with self.connect() as connection:
            connection.request("POST", path, body)
            answer = connection.read_answer()
            return answer.status, answer.json()

    def status_of(self, path: str) -> int | None:
        """The status of a GET; None without an answer."""
        try:
            return self.get(path)[0]
        except OSError:
            return None

    def connect(self, **options: Any) -> RawConnection:
        return RawConnection(self.port, **options)

    def stats(self) -> dict[str, Any]:
        """The statistics of every process: see `/stats` in docs/observability.md."""
        account: dict[str, Any] = json.loads(self._get_from_api("/stats"))
        return account

    def pid_of(self, role: str) -> int:
        """The process id of `api`, `tokenizer` or `engine`."""
        pid: int = self.stats()["processes"][role]
        return pid

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of `/metrics`; 0.0 if it is not there yet."""
        body = self._get_from_api("/metrics")
        for family in text_string_to_metric_families(body.decode()):
            for sample in family.samples:
                if sample.name == name and sample.labels.items() >= labels.items():
                    return sample.value
        return 0.0

    def _get_from_api(self, path: str) -> bytes:
        """The body of a page that the API process serves.

        The supervisor answers with 503 while it misses heartbeats of that process; on a busy machine this can happen
        at any time, so this method asks again until the API process answers.
        """
        answers: list[tuple[int, bytes]] = []

        def is_served() -> bool:
            answers.append(self.get(path))
            return answers[-1][0] != 503

        wait_until(is_served, f"the API process serves {path}")
        status, body = answers[-1]
        assert status == 200, body
        return body

    def finished(self, reason: str) -> float:
        """How many sequences finished for this reason since the start."""
        return self.metric("sluiceway_requests_finished_total", reason=reason)
