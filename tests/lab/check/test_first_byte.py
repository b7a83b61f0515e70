"""What comes before the first token."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from sluiceway.lab.check.first_byte import HEADERS, SILENCE, judge_headers, judge_silence
from sluiceway.lab.check.question import Question, Verdict
from support.model_server import SMALL, ask, model_server, peer_of


async def test_headers_at_once_pass() -> None:
    """Long before the first token."""
    found = await ask(HEADERS)
    assert found.verdict is Verdict.PASS and found.figures["headers_s"] < found.figures["first_token_s"]


async def test_headers_with_the_first_token_are_worth_a_warning() -> None:
    """It is lawful, but a client cannot tell whether it was accepted."""
    found = await ask(HEADERS, "late headers")
    assert found.verdict is Verdict.WARN and "at 100% of the wait" in found.sentence


async def test_silence_is_measured() -> None:
    """A server that is quick leaves nothing to say."""
    found = await ask(SILENCE)
    assert found.verdict is Verdict.UNKNOWN and found.figures["longest_silence_s"] > 0


@pytest.mark.parametrize("question", [HEADERS, SILENCE], ids=["first-byte", "silence"])
async def test_server_that_says_nothing_for_long_cannot_be_judged(question: Question) -> None:
    """Here for a tenth of a second, which is no fault yet."""
    async with model_server() as (script, _):
        hurried = msgspec.structs.replace(SMALL, timeout_s=0.2)
        peer = dataclasses.replace(await peer_of(script), config=hurried)
        script.slots = 0
        assert (await question.ask(peer)).verdict is Verdict.UNKNOWN


def test_headers_cannot_be_judged_when_the_first_token_is_quick() -> None:
    """Both are then within the noise."""
    assert judge_headers(0.001, 0.002, 0.01).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("longest_s", "n_comments", "verdict"),
    [(20.0, 1, Verdict.PASS), (20.0, 0, Verdict.WARN), (2.0, 0, Verdict.UNKNOWN)],
)
def test_long_silence_needs_comments(longest_s: float, n_comments: int, verdict: Verdict) -> None:
    """Proxies cut what says nothing."""
    assert judge_silence(longest_s, n_comments).verdict is verdict
