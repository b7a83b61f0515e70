"""Finds the test file of a source file: `tests/response/test_budget.py` for `src/sluiceway/response/budget.py`.

The lab's package is mirrored one folder further down: `src/sluiceway_lab/bench.py` to `tests/lab/test_bench.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sluiceway"
LAB = ROOT / "src" / "sluiceway_lab"
PACKAGES = {PACKAGE: ROOT / "tests", LAB: ROOT / "tests" / "lab"}
PURE = ("engine", "response", "sse", "ipc/messages", "protocols", "tokenizer/text")
"""Packages of pure files."""
SHELLS = ("engine/process.py", "engine/setup.py")
"""Files in these packages that are not pure."""


def source_files() -> list[Path]:
    """Every module that has a function with a body. The others only declare things, and need no test."""
    return [path for package in PACKAGES for path in sorted(package.rglob("*.py")) if has_logic(path)]


def pure_files() -> Iterator[Path]:
    """Files whose own tests must cover every branch."""
    for path in source_files():
        name = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else ""
        if name.startswith(tuple(f"{layer}/" for layer in PURE)) and name not in SHELLS:
            yield path


def mirror_of(source: Path) -> Path:
    """The path where the tests of this source file belong. It may not exist."""
    package = next(package for package in PACKAGES if source.is_relative_to(package))
    relative = source.relative_to(package)
    return PACKAGES[package] / relative.parent / f"test_{relative.name}"


def own_tests(source: Path) -> list[Path]:
    """The test files of this source file: its mirror, and files that are named after it and a topic.

    `test_fields_messages.py` belongs to `fields.py`, unless there is a `fields_messages.py`.
    """
    mirror = mirror_of(source)
    stems = {path.stem for path in source.parent.glob("*.py")}
    found = [mirror, *mirror.parent.glob(f"{mirror.stem}_*.py")]
    return sorted(path for path in found if path.exists() and _tested_by(path, stems) == source.stem)


def _tested_by(test: Path, stems: Iterable[str]) -> str:
    """The longest of these names of source files that begins the name of a test file."""
    topic = test.stem.removeprefix("test_")
    return max((stem for stem in stems if f"{topic}_".startswith(f"{stem}_")), key=len)


def has_logic(source: Path) -> bool:
    """True when a function of the file has more than a docstring or `...`."""
    functions = (node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, _FUNCTION))
    return any(not _is_declaration(statement) for function in functions for statement in function.body)


_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_declaration(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
