"""Runs the examples of the documentation as they are written."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from support.mirror import ROOT
from support.server import Server

EXAMPLES = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples need curl")
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: re.sub(r"\W+", "-", script)[:60])
def test_example_of_the_api_works(fake: Server, script: str) -> None:
    """Only the port is changed."""
    done = subprocess.run(
        ["sh", "-ec", script.replace("http://127.0.0.1:8000", fake.url)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and done.stdout and '"error"' not in done.stdout, done
