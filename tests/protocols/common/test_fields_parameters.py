"""One line in the table of sampling parameters adds a parameter to HTTP, to the command line and to `LLM`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import sluiceway
from sluiceway.protocols.common.fields import SamplingFields
from sluiceway.protocols.openai.unserved import CHAT, COMPLETIONS
from sluiceway.ranges import SamplingParameter
from sluiceway.types import SamplingParams

ROWS = {
    name: note
    for name, hint in get_type_hints(SamplingParams, include_extras=True).items()
    for note in get_args(hint)[1:]
    if isinstance(note, SamplingParameter)
}
AFTER = "    ignore_eos: "
NEW_ROW = """    typical_p: Annotated[float, SamplingParameter(Range(0, 1, is_above=True), "Typical tokens.")] = 1.0
"""
USE = """
import json, inspect
from sluiceway.cli.options import sampling_flags
from sluiceway.errors import RequestError
from sluiceway.llm import SamplingParams
from sluiceway.protocols.native.requests import parse_native
from sluiceway.protocols.openai.requests import parse_chat
from sluiceway.protocols.openai.requests import parse_completion

def body(**fields):
    return json.dumps({"model": "m", **fields}).encode()

CHAT = {"messages": [{"role": "user", "content": "x"}]}
READ = [
    lambda value: parse_chat(body(**CHAT, typical_p=value)).sampling,
    lambda value: parse_completion(body(prompt="x", typical_p=value)).sampling,
    lambda value: parse_native(body(prompt="x", typical_p=value), "m", is_streamed=True).sampling,
    lambda value: SamplingParams(typical_p=value),
]
for read in READ:
    assert read(0.5).typical_p == 0.5
    assert read(None).typical_p in (1.0, None)
    try:
        read(0.0)
    except RequestError as error:
        assert error.refusal.param == "typical_p", error.refusal
    else:
        raise AssertionError("0 is outside of the range")
assert "typical_p" in [flag.name for flag in sampling_flags()]
"""


def test_every_parameter_is_a_field_of_the_protocols_and_not_unserved() -> None:
    assert len(ROWS) > 10
    assert ROWS.keys() <= SamplingFields.model_fields.keys()
    assert not ROWS.keys() & (CHAT.keys() | COMPLETIONS.keys())


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.bounds is not None])
def test_every_default_is_in_its_range(name: str) -> None:
    bounds, default = ROWS[name].bounds, getattr(SamplingParams(), name)
    assert bounds is not None and (default is None or bounds.holds(default))


def test_one_line_adds_a_parameter(tmp_path: Path) -> None:
    """The test adds the line to a copy of the package."""
    package = tmp_path / "sluiceway"
    shutil.copytree(Path(sluiceway.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    table = package / "types.py"
    text = table.read_text()
    assert text.count(AFTER) == 1 and "typical_p" not in text
    table.write_text(text.replace(AFTER, NEW_ROW + AFTER))
    use = [sys.executable, "-c", f"import sluiceway; assert sluiceway.__file__.startswith({str(tmp_path)!r})\n{USE}"]
    run = subprocess.run(use, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
