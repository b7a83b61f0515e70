"""What the system must have: `scripts/system`, among commands that a test has written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.mirror import ROOT

TABLE = """# a comment
proxy | nonesuch somewhere | nginx-light | tests are left out
sed | sed | sed-tools | nothing
"""
NEEDED = ("sh", "sed", "cut", "dirname", "id")


class Place:
    """A copy of the script with a table of its own, where only a few commands are."""

    def __init__(self, path: Path) -> None:
        self.commands = path / "bin"
        self.commands.mkdir()
        for name in NEEDED:
            (self.commands / name).symlink_to(shutil.which(name) or name)
        self.script = path / "system"
        # Commands of the machine's own administrator are none of a test's.
        self.script.write_text((ROOT / "scripts" / "system").read_text().replace(":/usr/sbin:/sbin", ""))
        (path / "system-packages.txt").write_text(TABLE)

    def add(self, name: str, body: str) -> None:
        (self.commands / name).unlink(missing_ok=True)
        (self.commands / name).write_text(f"#!/bin/sh\n{body}\n")
        (self.commands / name).chmod(0o755)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["/bin/sh", str(self.script), *arguments],
            env={"PATH": str(self.commands)},
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_nothing_is_said_of_what_is_there(place: Place) -> None:
    """One command of the line is enough."""
    place.add("somewhere", "exit 1")
    done = place.run("sed", "proxy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_missing_is_told_with_its_cost_where_it_cannot_be_installed(place: Place) -> None:
    """No apt-get; and with one, nobody who may use it."""
    told = "Without proxy: tests are left out. On Debian and Ubuntu: apt-get install nginx-light\n"
    done = place.run("proxy", "sed")
    assert (done.returncode, done.stderr) == (1, told)
    place.add("apt-get", "exit 0")
    place.add("id", "echo 1000")
    place.add("sudo", "exit 1")
    done = place.run("proxy")
    assert (done.returncode, done.stderr) == (1, told)


def test_looking_installs_nothing(place: Place) -> None:
    """Only the exit code tells."""
    place.add("apt-get", "exit 0")
    assert place.run("--check", "sed").returncode == 0
    done = place.run("--check", "proxy")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_what_is_missing_is_installed_by_who_may(place: Place, tmp_path: Path) -> None:
    """Through sudo without a password, and quietly."""
    place.add("apt-get", "exit 0")
    place.add("id", "echo 1000")
    place.add("sudo", f'printf "%s\\n" "$@" >>{tmp_path}/asked; echo loud')
    done = place.run("proxy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Installing nginx-light.\n")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:2] == ["-n", "true"] and asked[-2:] == ["sh", "nginx-light"]


@pytest.mark.parametrize("arguments", [(), ("--check",), ("nonsense",)])
def test_wrong_use_is_told(place: Place, arguments: tuple[str, ...]) -> None:
    """As of any command."""
    done = place.run(*arguments)
    assert done.returncode == 2 and done.stderr


def test_every_need_of_ours_has_packages_and_a_cost() -> None:
    """The table that the scripts read."""
    lines = (ROOT / "scripts" / "system-packages.txt").read_text().splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines if not line.startswith("#")]
    assert [need for need, *_ in rows] == ["python", "compiler", "proxy", "browser"]
    assert all(packages and cost for _, _, packages, cost in rows)
