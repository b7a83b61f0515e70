"""No code, test or page uses the words that the glossary rules out."""

from __future__ import annotations

import pytest

from support.words import BANNED, pages, uses, words_in


def test_no_banned_word_is_used() -> None:
    assert [f"{use.path}:{use.line}: {use.word}" for use in uses(BANNED, pages())] == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a reader, whoever it is", ["whoever"]),
        ("def test_blocks_are_let_go(): pass", ["let go"]),
        ("it is no more, and is no more than 8", ["is no more"]),
        ("is told its logprobs, and is told to stop", ["is told its logprobs"]),
        ("a shallow outlet goes", []),
    ],
)
def test_banned_words_are_found_in_sentences_and_names(line: str, words: list[str]) -> None:
    assert words_in(line, BANNED) == words
