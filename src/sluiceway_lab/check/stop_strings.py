"""Asks whether the text ends right before a stop string, even if the string spans several pieces."""

from __future__ import annotations

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question, by_faults, unknown
from sluiceway_lab.load.transcript import ChoicePart

_NEVER = "\u2603never said\u2603"
_SPAN = 2
"""How many characters of the pieces next to a border are part of the stop string."""


async def _ask(context: CheckContext) -> Finding:
    (prompt,) = context.prompts("stop", 1)
    n_tokens = context.config.tokens
    said = await context.stream(prompt, n_tokens)
    text = said.text
    if text != (await context.stream(prompt, n_tokens)).text:
        return unknown("the same greedy request has two answers, so it is unknown where it should stop")
    faults, stops = [], stops_across(said.deltas)
    for stop in stops:
        expected = text[: text.index(stop)]
        streamed, whole = (
            await context.stream(prompt, n_tokens, stop=[stop]),
            await context.plain(prompt, n_tokens, stop=[stop]),
        )
        faults += faults_of("streamed", streamed.text, expected, stop) + faults_of("whole", whole.text, expected, stop)
        if streamed.finish_reasons != ["stop"]:
            faults.append(f"the finish reason at a stop string is {streamed.finish_reasons}")
    held = await context.stream(prompt, n_tokens, stop=[text[-_SPAN:] + _NEVER])
    if held.text != text:
        faults.append(f"{lost(text, held.text)}, where it ends like the beginning of a stop string")
    return by_faults(faults, [], f"{len(stops)} stop strings across pieces: the text ends right before each")


def lost(text: str, held: str) -> str:
    if text.startswith(held):
        return f"the stream lost its last {len(text) - len(held)} characters {text[len(held) :]!r}"
    return f"the stream has {len(held)} characters and not {len(text)}"


def stops_across(deltas: list[ChoicePart]) -> list[str]:
    """Return a stop string across two pieces, and one across three if there are as many."""
    middle = len(deltas) // 2
    texts = [part.text for part in deltas[middle - 1 : middle + 2]]
    if len(texts) < 2:
        return []
    pair = texts[0][-_SPAN:] + texts[1][:_SPAN]
    return [pair, texts[0][-_SPAN:] + texts[1] + texts[2][:_SPAN]] if len(texts) > _SPAN else [pair]


def faults_of(form: str, text: str, expected: str, stop: str) -> list[str]:
    if text == expected:
        return []
    leaked = text.removeprefix(expected)
    if text.startswith(expected) and stop.startswith(leaked):
        return [f"{form}: {len(leaked)} characters of the stop string {stop!r} leaked"]
    return [f"{form}: the answer has {len(text)} characters and not the {len(expected)} before {stop!r}"]


QUESTION = Question("stop-strings", "Does the text end right before a stop string, even across pieces?", _ask)
