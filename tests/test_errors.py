"""Errors have the data that their receivers need, and form one tree."""

from __future__ import annotations

import ast
import re
from typing import TypeGuard

from sluiceway import errors
from sluiceway.errors import ConfigError, Refusal, RequestError, invalid
from support.mirror import PACKAGE


def test_every_error_class_is_in_the_tree_of_the_docstring() -> None:
    """In whichever module it is defined. A handler of the root class catches all of them."""
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


def test_config_error_names_the_setting() -> None:
    """As a field, and in the message."""
    error = ConfigError("port", "must be from 0 to 65535, not -1")
    assert error.field == "port"
    assert str(error) == "port: must be from 0 to 65535, not -1"


def test_request_error_has_the_whole_refusal() -> None:
    """Its text is the message of the refusal."""
    refusal = Refusal(status=503, code="overloaded", message="Come again.", retry_after_s=1.0)
    error = RequestError(refusal)
    assert error.refusal is refusal and str(error) == "Come again."


def test_invalid_makes_a_refusal_with_status_400() -> None:
    assert invalid("No.").refusal == Refusal(status=400, code="invalid_value", message="No.", param=None)
    assert invalid("No.", "n", code="too_many").refusal == Refusal(
        status=400, code="too_many", message="No.", param="n"
    )
