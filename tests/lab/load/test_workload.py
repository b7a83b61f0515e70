"""The texts of requests."""

from __future__ import annotations

import itertools

from sluiceway_lab.load.workload import completion, long_prompt, prompts, words


def test_prompts_are_different_from_their_first_words_on() -> None:
    texts = [*prompts(0, "together/32/0", 32), *prompts(0, "together/32/1", 32), *prompts(1, "together/32/0", 32)]
    assert len({text[:40] for text in texts}) == 96


def test_prompts_are_of_the_asked_length() -> None:
    texts = prompts(0, "x", 32)
    assert all(200 <= len(text) < 212 for text in texts)
    assert 40 <= sum(len(text.split()) for text in texts) / 32 <= 50


def test_prompts_are_the_same_for_the_same_seed() -> None:
    """Also in another process: they do not depend on the hash of a text."""
    assert prompts(3, "x", 2) == prompts(3, "x", 2)
    assert prompts(0, "x", 1)[0].split()[:3] == list(itertools.islice(words("0/x/0"), 3))


def test_long_prompt_has_the_wanted_number_of_words() -> None:
    assert len(long_prompt(0, "prefill", 1000).split()) == 1000


def test_completion_is_greedy_and_streamed() -> None:
    body = completion("m", "p", 64, {"ignore_eos": True})
    expected = {"model": "m", "prompt": "p", "max_tokens": 64, "temperature": 0, "stream": True, "ignore_eos": True}
    assert body == expected
