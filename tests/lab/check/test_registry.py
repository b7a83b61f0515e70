"""The list of questions."""

from __future__ import annotations

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.check.registry import QUESTIONS, chosen
from support.mirror import ROOT


def test_names_are_unique_and_the_last_one_ends_the_server() -> None:
    names = [question.name for question in QUESTIONS]
    assert len(set(names)) == len(names) and names[-1] == "drain"


def test_questions_are_chosen_by_name() -> None:
    assert [question.name for question in chosen(["fin", "overlap"])] == ["overlap", "fin"]
    assert chosen([]) == list(QUESTIONS)


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="only: must be one of bad-requests, .*, not 'naps'"):
        chosen(["naps"])


def test_every_question_is_on_its_page() -> None:
    page = (ROOT / "docs" / "check.md").read_text()
    assert [question.name for question in QUESTIONS if f"`{question.name}`" not in page] == []
