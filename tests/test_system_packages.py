"""`scripts/system` finds and installs system packages; tests give it fake commands."""

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


class FakeSystem:
    """Runs a copy of the script with a table of its own, and with a few commands only."""

    def __init__(self, path: Path) -> None:
        self.commands = path / "bin"
        self.commands.mkdir()
        for name in NEEDED:
            (self.commands / name).symlink_to(shutil.which(name) or name)
        self.script = path / "system"
        # Without these folders the script cannot find commands of this machine.
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
def system(tmp_path: Path) -> FakeSystem:
    return FakeSystem(tmp_path)


def test_present_commands_print_nothing(system: FakeSystem) -> None:
    """One command of a line is enough."""
    system.add("somewhere", "exit 1")
    done = system.run("sed", "proxy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_package_that_cannot_be_installed_is_named_with_its_effect(system: FakeSystem) -> None:
    """There is no apt-get, or the user may not use it."""
    message = "Without proxy: tests are left out. On Debian and Ubuntu: apt-get install nginx-light\n"
    done = system.run("proxy", "sed")
    assert (done.returncode, done.stderr) == (1, message)
    system.add("apt-get", "exit 0")
    system.add("id", "echo 1000")
    system.add("sudo", "exit 1")
    done = system.run("proxy")
    assert (done.returncode, done.stderr) == (1, message)


def test_check_installs_nothing(system: FakeSystem) -> None:
    """The exit code alone shows the result."""
    system.add("apt-get", "exit 0")
    assert system.run("--check", "sed").returncode == 0
    done = system.run("--check", "proxy")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_missing_package_is_installed_with_sudo(system: FakeSystem, tmp_path: Path) -> None:
    """Only if sudo asks for no password. The output of apt-get is not shown."""
    system.add("apt-get", "exit 0")
    system.add("id", "echo 1000")
    system.add("sudo", f'printf "%s\\n" "$@" >>{tmp_path}/asked; echo loud')
    done = system.run("proxy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Installing nginx-light.\n")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:2] == ["-n", "true"] and asked[-2:] == ["sh", "nginx-light"]


@pytest.mark.parametrize("arguments", [(), ("--check",), ("nonsense",)])
def test_wrong_arguments_are_an_error(system: FakeSystem, arguments: tuple[str, ...]) -> None:
    done = system.run(*arguments)
    assert done.returncode == 2 and done.stderr


def test_every_line_of_the_table_has_packages_and_an_effect() -> None:
    lines = (ROOT / "scripts" / "system-packages.txt").read_text().splitlines()
    rows = [[part.strip() for part in line.split("|")] for line in lines if not line.startswith("#")]
    assert [need for need, *_ in rows] == ["python", "compiler", "proxy", "browser"]
    assert all(packages and cost for _, _, packages, cost in rows)
