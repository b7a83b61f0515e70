"""Errors carry what their receivers need, and form one tree."""

from __future__ import annotations

import ast
import re
from typing import TypeGuard

from sluiceway import errors
from sluiceway.errors import ConfigError, Refusal, RequestError, invalid
from support.mirror import PACKAGE


def test_every_error_of_the_package_is_in_the_drawing() -> None:
    """Wherever its class stands: the tree is drawn in one place. Who catches the root catches all of it."""
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"── (\w+)", errors.__doc__))
    known, found = {"SluicewayError"}, {"SluicewayError"}
    classes = [
        node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())) if is_class(node)
    ]
    while found:
        found = {one.name for one in classes if {ast.unparse(base) for base in one.bases} & known} - known
        known |= found
    assert known - {"SluicewayError"} == drawn


def is_class(node: ast.AST) -> TypeGuard[ast.ClassDef]:
    return isinstance(node, ast.ClassDef)


def test_a_wrong_setting_is_named() -> None:
    """As a field, and in the message."""
    error = ConfigError("port", "must be from 0 to 65535, not -1")
    assert error.field == "port"
    assert str(error) == "port: must be from 0 to 65535, not -1"


def test_a_refused_request_says_how_to_answer() -> None:
    """The whole refusal travels with it; a log line shows its message."""
    refusal = Refusal(status=503, code="overloaded", message="Come again.", retry_after_s=1.0)
    error = RequestError(refusal)
    assert error.refusal is refusal and str(error) == "Come again."


def test_bad_input_is_a_400() -> None:
    """The short form for what schemas raise."""
    assert invalid("No.").refusal == Refusal(status=400, code="invalid_value", message="No.", param=None)
    assert invalid("No.", "n", code="too_many").refusal == Refusal(
        status=400, code="too_many", message="No.", param="n"
    )
