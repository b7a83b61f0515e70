"""Several requests on a connection."""

from __future__ import annotations

from sluiceway.lab.check.connections import QUESTION
from sluiceway.lab.check.question import Verdict
from support.model_server import ask


async def test_connection_that_goes_on_passes() -> None:
    """One after another, and sent together."""
    assert (await ask(QUESTION)).verdict is Verdict.PASS


async def test_connection_that_ends_without_notice_fails() -> None:
    """The client would have to guess."""
    found = await ask(QUESTION, "one shot")
    assert found.verdict is Verdict.FAIL and found.sentence.startswith("a request after a plain answer: ")
