"""The turns of a chat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cli.conversation import Conversation


def test_turns_follow_the_system_text() -> None:
    """They keep their order."""
    conversation = Conversation("be brief")
    conversation.ask("hello")
    conversation.settle("hi")
    assert [(turn["role"], turn["content"]) for turn in conversation.messages] == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", "hi"),
    ]


def test_question_without_an_answer_is_removed() -> None:
    """Otherwise two questions would follow each other."""
    conversation = Conversation()
    conversation.ask("hello")
    conversation.settle("")
    assert conversation.messages == []


def test_reset_keeps_the_system_text() -> None:
    conversation = Conversation("be brief")
    conversation.ask("hello")
    conversation.settle("hi")
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "be brief"}]


@given(st.lists(st.sampled_from(["", "answer"])))
def test_roles_alternate_after_cancelled_answers(answers: list[str]) -> None:
    """Chat templates require it."""
    conversation = Conversation()
    for answer in answers:
        conversation.ask("question")
        conversation.settle(answer)
    roles = [turn["role"] for turn in conversation.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
