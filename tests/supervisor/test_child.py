"""A child process without its supervisor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from sluiceway.config import ModelFiles, ModelKind, ServeConfig
from sluiceway.ipc.messages.to_child import Role
from sluiceway.supervisor.child import CONFIG_FILE

START_S = 60.0


def test_child_exits_when_its_supervisor_died_before_it_started(tmp_path: Path) -> None:
    """Its parent is another process then."""
    supervisor = subprocess.Popen([sys.executable, "-c", ""])
    supervisor.wait()
    directory = tmp_path / "runtime"
    directory.mkdir()
    config = ServeConfig(model=ModelFiles(kind=ModelKind.FAKE, path="", name="fake"), port=0)
    (directory / CONFIG_FILE).write_bytes(msgspec.msgpack.encode(config))
    child = [
        sys.executable,
        "-m",
        "sluiceway.supervisor.child",
        Role.TOKENIZER.value,
        str(directory),
        str(supervisor.pid),
        "-1",
    ]
    assert subprocess.run(child, timeout=START_S, check=False).returncode == 1
    assert not directory.exists()
