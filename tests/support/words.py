"""Finds words that the glossary (`docs/glossary.md`, section "Sentences") rules out, or asks to read again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from support.mirror import ROOT

BANNED: Mapping[str, str] = MappingProxyType(
    {
        r"whoever": "name who it is",
        r"whomever": "name who it is",
        r"(let|lets|letting) go( of)?": "release, evict, close, drop: the verb of the thing",
        r"(give|gives|giving|gave) way": "say what happens",
        r"(?<!there )is no more(?! than)": "has ended, is closed, is gone",
        r"shall": "must, should, will",
        r"(is|are|was|were|be) told (its |their |the )?(logprobs|log-probabilities|progress)": "gets, receives",
    }
)
"""Words that are not used, as patterns over lower-case text, and what to write instead."""

SUSPICIOUS = (
    r"nobody",
    r"somebody",
    r"one that",
    r"those that",
    r"at once",
    r"so many",
    r"so much",
    r"so far",
    r"stands?",
    r"beside",
    r"told",
    r"needy",
    r"whom",
    r"wish(es)?",
    r"come to rest",
)
"""Words that are often, but not always, part of a sentence that needs a second reading."""

_FOLDERS = ("src", "tests", "scripts", "docs", ".github")
_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "pyproject.toml", "setup.py")
_SUFFIXES = {"", ".py", ".md", ".cpp", ".hpp", ".h", ".yml", ".txt", ".toml", ".js"}
_EXCEPT = ("docs/glossary.md", "tests/support/words.py", "tests/test_words.py")
_NOT_WORDS = re.compile(r"[_\s]+")


class Use(NamedTuple):
    """One place where a word is used; `path` is relative to the root of the repository."""

    path: str
    line: int
    word: str
    text: str


def pages() -> Iterator[Path]:
    """Every file that is written by hand. An installation writes `*.egg-info`, perhaps from an older README."""
    for folder in _FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            is_made = "__pycache__" in path.parts or any(part.endswith(".egg-info") for part in path.parts)
            if path.is_file() and path.suffix in _SUFFIXES and not is_made:
                yield path
    for name in _PAGES:
        yield ROOT / name


def words_in(line: str, patterns: Iterable[str]) -> list[str]:
    """The words of a line that match, in names of code too: `let_go` is two words."""
    any_word = re.compile(rf"(?<![a-z0-9])({'|'.join(patterns)})(?![a-z0-9])")
    return [match[0] for match in any_word.finditer(_NOT_WORDS.sub(" ", line.lower()))]


def uses(patterns: Iterable[str], paths: Iterable[Path]) -> Iterator[Use]:
    """Where the words are used."""
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if name not in _EXCEPT:
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                for word in words_in(line, patterns):
                    yield Use(name, number, word, line.strip())
