"""Characters of several tokens."""

from __future__ import annotations

from sluiceway_lab.check.characters import QUESTION, broken_pieces
from sluiceway_lab.load.record import Grade
from support.model_server import ask
from support.transcripts import transcript


async def test_whole_characters_pass() -> None:
    found = await ask(QUESTION)
    assert found.grade is Grade.PASS and "characters beyond ASCII" in found.sentence


async def test_halves_fail() -> None:
    found = await ask(QUESTION, "half characters")
    assert found.grade is Grade.FAIL and "replacement characters in the stream" in found.sentence


def test_nonsense_of_the_model_is_no_fault() -> None:
    """Broken characters of the complete answer are the model's; half of a surrogate pair is always a fault."""
    assert broken_pieces(transcript("a", "\ufffd"), "a\ufffd") == []
    assert broken_pieces(transcript("a\ufffd", "\ufffd"), "a\ufffd") != []
    assert broken_pieces(transcript("\ud83d"), "\ud83d") == ["half of a surrogate pair"]
