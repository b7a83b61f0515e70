"""Rules for the code: imports, which process loads what, a test file per source file, class names, no sleeps."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.mirror import PACKAGE, PACKAGES, ROOT, mirror_of, source_files

TESTED_ELSEWHERE = {
    "sluiceway/supervisor/supervisor.py": "children and signals: tests/e2e kills and stops real ones",
}
"""Source files without a test file of their own, with the reason."""
SLEEPING = {
    "tests/support/server.py",  # `wait_until` polls
    "tests/support/model_server.py",  # plays a server whose tokens take time
}
"""Files that may call `sleep`."""
SHARED_CLASS_NAMES = {"Decoder", "Input", "SamplingParams", "State", "Step"}
"""Names of classes that two parts of the code may share: at most six."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def modules_after(statement: str) -> set[str]:
    """Return the top-level names in `sys.modules` of a new interpreter that ran this statement."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    completed = run(sys.executable, "-c", script)
    assert completed.returncode == 0, completed.stderr
    return set(completed.stdout.split())


def test_imports_point_down_only() -> None:
    """import-linter finds no broken contract."""
    completed = run(str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    assert completed.returncode == 0, completed.stdout


def test_the_api_process_stays_light_when_it_is_imported() -> None:
    """The linter reads imports; this test runs them. The API process loads no model and no tokenizer."""
    assert not modules_after("import sluiceway.api.process") & {"torch", "transformers", "tokenizers"}


def test_the_scheduler_stays_pure_when_it_is_imported() -> None:
    """The scheduler loads no event loop, no socket and no tensor, also not through what it imports."""
    assert not modules_after("import sluiceway.engine.scheduler.scheduler") & {"asyncio", "zmq", "torch"}


@pytest.mark.parametrize("module", ["sluiceway", "sluiceway.cli.app"])
def test_the_command_line_starts_without_a_model(module: str) -> None:
    """`sluiceway --help` does not wait for torch."""
    assert "torch" not in modules_after(f"import {module}")


def test_every_source_file_has_a_test_file_of_its_name() -> None:
    """`src/sluiceway/engine/scheduler/blocks.py` is tested by `tests/engine/scheduler/test_blocks.py`."""
    missing = {
        source.relative_to(PACKAGE.parent).as_posix() for source in source_files() if not mirror_of(source).exists()
    } - TESTED_ELSEWHERE.keys()
    assert not sorted(missing)


def test_the_list_of_exceptions_has_no_stale_entry() -> None:
    """Each file on the list exists and has no test file of its own."""
    for name in TESTED_ELSEWHERE:
        source = PACKAGE.parent / name
        assert source.exists() and not mirror_of(source).exists(), name


def test_packages_import_nothing_when_they_are_imported() -> None:
    """An `__init__` that imports would load its imports for every module below it."""
    for init in (path for package in PACKAGES for path in package.rglob("__init__.py")):
        imports = [
            node for node in ast.walk(ast.parse(init.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not imports, init


def test_no_two_classes_have_the_same_name() -> None:
    """A name means one thing in the whole source tree."""
    classes = Counter(
        node.name
        for package in PACKAGES
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, n in classes.items() if n > 1} <= SHARED_CLASS_NAMES
    assert len(SHARED_CLASS_NAMES) <= 6


def test_no_test_sleeps() -> None:
    """A test waits for a condition (`support.server.wait_until`) or lets the loop turn (`asyncio.sleep(0)`)."""
    sleeps = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sleep", "time.sleep", "asyncio.sleep")
        if ast.unparse(node) != "asyncio.sleep(0)"
    }
    assert sleeps == SLEEPING
