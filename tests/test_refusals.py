"""Refusals whose text several places use."""

from __future__ import annotations

import pytest

from sluiceway.refusals import OUT_OF_MEMORY, OVERLOADED, answer_too_large, lost, prompt_too_long, unavailable


def test_refusal_of_a_too_large_answer_names_the_bound_and_a_remedy() -> None:
    """It names the field too, if a field is the cause."""
    refusal = answer_too_large(1_000, "max_tokens")
    assert (refusal.status, refusal.code, refusal.param) == (400, "answer_too_large", "max_tokens")
    assert "1000 bytes" in refusal.message and "`stream`" in refusal.message
    assert answer_too_large(1_000).param is None


def test_full_memory_has_the_status_and_code_of_overload() -> None:
    """Clients retry after the same time, but get another message."""
    assert (OUT_OF_MEMORY.code, OUT_OF_MEMORY.status, OUT_OF_MEMORY.retry_after_s) == (
        OVERLOADED.code,
        OVERLOADED.status,
        OVERLOADED.retry_after_s,
    )
    assert OUT_OF_MEMORY.message != OVERLOADED.message


@pytest.mark.parametrize("why", ["", ", since its cache holds no more"])
def test_refusal_of_a_too_long_prompt_has_the_words_that_libraries_search(why: str) -> None:
    """LiteLLM searches the first, in lower case; LangChain the second; others read the number out of the third."""
    refusal = prompt_too_long("at least 120", 100, why)
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
    assert "this model's maximum context length is" in refusal.message.lower()
    assert "prompt is too long" in refusal.message
    assert "maximum context length is 100 tokens" in refusal.message
    assert "at least 120 tokens" in refusal.message and why in refusal.message


def test_refusal_names_the_lost_or_missing_process() -> None:
    assert (lost("tokenizer").code, lost("tokenizer").status) == ("engine_lost", 503)
    assert lost("tokenizer").message == "The tokenizer stopped while it worked on this request."
    refusal = unavailable("engine", "does not respond")
    assert (refusal.code, refusal.status, refusal.retry_after_s) == ("engine_unavailable", 503, 1.0)
    assert refusal.message == "The engine does not respond; try again in a moment."
