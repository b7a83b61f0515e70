"""The turns of a chat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluiceway.cli.conversation import Conversation


def test_turns_follow_the_system_text() -> None:
    """In the order in which they were said."""
    conversation = Conversation("be brief")
    conversation.ask("hello")
    conversation.settle("hi")
    assert [(turn["role"], turn["content"]) for turn in conversation.messages] == [
        ("system", "be brief"),
        ("user", "hello"),
        ("assistant", "hi"),
    ]


def test_question_is_taken_back_when_it_got_no_text() -> None:
    """It would be two questions in a row."""
    conversation = Conversation()
    conversation.ask("hello")
    conversation.settle("")
    assert conversation.messages == []


def test_reset_keeps_the_system_text() -> None:
    """The turns go."""
    conversation = Conversation("be brief")
    conversation.ask("hello")
    conversation.settle("hi")
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "be brief"}]


@given(st.lists(st.sampled_from(["", "answer"])))
def test_roles_alternate_whatever_was_cancelled(answers: list[str]) -> None:
    """Chat templates refuse anything else."""
    conversation = Conversation()
    for answer in answers:
        conversation.ask("question")
        conversation.settle(answer)
    roles = [turn["role"] for turn in conversation.messages]
    assert roles == ["user", "assistant"] * (len(roles) // 2)
