"""What is refused in the same words everywhere."""

from __future__ import annotations

from sluiceway.refusals import OUT_OF_MEMORY, OVERLOADED, answer_too_large


def test_an_answer_that_is_too_large_names_the_bound_and_what_to_do() -> None:
    """The field too, where one is to blame."""
    refusal = answer_too_large(1_000, "max_tokens")
    assert (refusal.status, refusal.code, refusal.param) == (400, "answer_too_large", "max_tokens")
    assert "1000 bytes" in refusal.message and "`stream`" in refusal.message
    assert answer_too_large(1_000).param is None


def test_memory_that_is_full_is_one_way_of_being_overloaded() -> None:
    """Clients come again after the same time, and are told another reason."""
    assert (OUT_OF_MEMORY.code, OUT_OF_MEMORY.status, OUT_OF_MEMORY.retry_after_s) == (
        OVERLOADED.code,
        OVERLOADED.status,
        OVERLOADED.retry_after_s,
    )
    assert OUT_OF_MEMORY.message != OVERLOADED.message
