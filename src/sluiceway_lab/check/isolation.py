"""Asks whether greedy answers are the same alone and in a batch, and free of other answers' text."""

from __future__ import annotations

from collections.abc import Sequence

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question
from sluiceway_lab.load.record import Grade

_STRETCH = 24
"""A longer stretch of text that two answers share is no coincidence."""


async def _ask(context: CheckContext) -> Finding:
    n_tokens = context.config.tokens
    texts = context.prompts("isolation", max(2, context.config.streams // 2))
    alone = [(await context.stream(text, n_tokens)).text for text in texts]
    again = [(await context.stream(text, n_tokens)).text for text in texts]
    others = context.prompts("isolation/others", len(texts))
    batched = (await context.streams([*texts, *others], n_tokens))[: len(texts)]
    n_mixed = sum(len(answer.ids) > 1 for answer in batched)
    return judge(alone, again, [answer.text for answer in batched], n_mixed)


def judge(alone: Sequence[str], again: Sequence[str], batched: Sequence[str], n_mixed: int) -> Finding:
    """Judge answers by place. `n_mixed` is the number of streams whose events had several ids.

    A batch of another size adds numbers in another order, so in low precision some answers differ. That is worth a
    warning. Text of another answer is a failure.
    """
    parted = [place for place in map(first_difference, alone, batched) if place is not None]
    figures = {"answers": float(len(alone)), "parted": float(len(parted))}
    strangers = sum(has_others_text(place, alone, text) for place, text in enumerate(batched))
    if strangers or n_mixed:
        found = (
            f"{strangers} of {len(alone)} answers contained text of another answer, {n_mixed} had events of several ids"
        )
        return Finding(Grade.FAIL, found, figures)
    if not parted:
        return Finding(Grade.PASS, f"{len(alone)} of {len(alone)} greedy answers were the same in a batch", figures)
    n_unstable = sum(first != second for first, second in zip(alone, again, strict=True))
    sentence = (
        f"{len(parted)} of {len(alone)} greedy answers differed in a batch, the first after {min(parted)} characters; "
        f"{n_unstable} were not even the same twice alone (usual in low precision)"
    )
    return Finding(Grade.WARN, sentence, figures | {"first_difference": float(min(parted)), "unstable": n_unstable})


def first_difference(left: str, right: str) -> int | None:
    """Return the first place where the texts differ; None if they are equal."""
    if left == right:
        return None
    pairs = enumerate(zip(left, right, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(left), len(right)))


def has_others_text(place: int, alone: Sequence[str], text: str) -> bool:
    """Return True if the text has a stretch of another answer that its own answer does not have."""
    own = alone[place]
    others = (text for other, text in enumerate(alone) if other != place)
    stretches = {other[start : start + _STRETCH] for other in others for start in range(len(other) - _STRETCH + 1)}
    return any(stretch in text and stretch not in own for stretch in stretches)


QUESTION = Question("isolation", "Is an answer the same in a batch, and free of other answers' text?", _ask)
