"""Asks what answers say: several at the same time, their ends, their characters, and where they stop."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from sluiceway_lab.check.question import CheckContext, Finding, Question, by_faults, grouped, unknown
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.transcript import ChoicePart, Transcript, read_transcript

_CHAT = "/v1/chat/completions"
_WORTH_IT = 1.2
"""The least speed-up over one after another that counts as batching."""
_STRETCH = 24
"""A longer stretch of text that two answers share is no coincidence."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SCRIPTS = "\u041f\u0440\u0438\u0432\u0435\u0442 \u00fcber \u00e9t\u00e9 \u0928\u092e\u0938\u094d\u0924\u0947 "
_PROMPTS = (
    "Repeat this line for ever: " + "\U0001f600\U0001f680\U0001f9ea\U0001f1ea\U0001f1fa " * 6,
    "\u6f22\u5b57\u4eee\u540d\uff0c\u4e16\u754c\u4f60\u597d\u3002" * 6,
    _SCRIPTS * 3,
)
_NEVER = "\u2603never stream\u2603"
_SPAN = 2
"""How many characters of the pieces next to a border are part of the stop string."""


async def _ask_overlap(context: CheckContext) -> Finding:
    n, n_tokens = context.config.streams, context.config.tokens
    started_s = time.perf_counter()
    for prompt in context.prompts("overlap/alone", n):
        await context.stream(prompt, n_tokens)
    alone_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    answers = await context.streams(context.prompts("overlap/together", n), n_tokens)
    together_s = time.perf_counter() - started_s
    return judge_overlap(n_overlapping(answers), n, alone_s / together_s)


def judge_overlap(n_begun: int, n: int, ratio: float) -> Finding:
    """Running a few of many at a time is permitted. Running one at a time fails."""
    grade = Grade.FAIL if n_begun < 2 else Grade.WARN if ratio < _WORTH_IT or n_begun < n else Grade.PASS
    sentence = (
        f"{n_begun} of {n} streams had begun before the first of them ended; "
        f"together they were {ratio:.2f} times as fast as one after another"
    )
    return Finding(grade, sentence, {"streams_begun": n_begun, "over_alone": ratio})


def n_overlapping(answers: list[Transcript]) -> int:
    """Return how many had begun when the first one ended."""
    stream = [answer.deltas for answer in answers if answer.deltas]
    first_end_s = min((deltas[-1].at_s for deltas in stream), default=0.0)
    return sum(deltas[0].at_s <= first_end_s for deltas in stream)


async def _ask_isolation(context: CheckContext) -> Finding:
    n_tokens = context.config.tokens
    texts = context.prompts("isolation", max(2, context.config.streams // 2))
    alone = [(await context.stream(text, n_tokens)).text for text in texts]
    again = [(await context.stream(text, n_tokens)).text for text in texts]
    others = context.prompts("isolation/others", len(texts))
    batched = (await context.streams([*texts, *others], n_tokens))[: len(texts)]
    n_mixed = sum(len(answer.ids) > 1 for answer in batched)
    return judge_isolation(alone, again, [answer.text for answer in batched], n_mixed)


def judge_isolation(alone: Sequence[str], again: Sequence[str], batched: Sequence[str], n_mixed: int) -> Finding:
    """Judge answers by place. `n_mixed` is the number of streams whose events had several ids.

    A batch of another size adds numbers in another order, so in low precision some answers differ. That is worth a
    warning. Text of another answer is a failure.
    """
    n = len(alone)
    parted = [len(os.path.commonprefix(pair)) for pair in zip(alone, batched, strict=True) if pair[0] != pair[1]]
    figures = {"answers": float(n), "parted": float(len(parted))}
    strangers = sum(has_others_text(place, alone, text) for place, text in enumerate(batched))
    if strangers or n_mixed:
        found = f"{strangers} of {n} answers contained text of another answer, {n_mixed} had events of several ids"
        return Finding(Grade.FAIL, found, figures)
    if not parted:
        return Finding(Grade.PASS, f"{n} of {n} greedy answers were the same in a batch", figures)
    n_unstable = sum(first != second for first, second in zip(alone, again, strict=True))
    sentence = (
        f"{len(parted)} of {n} greedy answers differed in a batch, the first after {min(parted)} characters; "
        f"{n_unstable} were not even the same twice alone (usual in low precision)"
    )
    return Finding(Grade.WARN, sentence, figures | {"first_difference": float(min(parted)), "unstable": n_unstable})


def has_others_text(place: int, alone: Sequence[str], text: str) -> bool:
    """Return True if the text has a stretch of another answer that its own answer does not have."""
    others = (other for number, other in enumerate(alone) if number != place)
    stretches = {other[start : start + _STRETCH] for other in others for start in range(len(other) - _STRETCH + 1)}
    return any(stretch in text and stretch not in alone[place] for stretch in stretches)


async def _ask_terminal(context: CheckContext) -> Finding:
    (prompt,) = context.prompts("terminal", 1)
    at_length = await context.stream(prompt, context.config.tokens)
    stop = at_length.text[len(at_length.text) // 2 :][:4]
    at_stop = await context.stream(prompt, context.config.tokens, stop=stop)
    streams = {"at the length": at_length, "at a stop string": at_stop}
    if (chat := await _chat(context, prompt)) is not None:
        streams["of a chat"] = chat
    wants = context.has_usage
    faults = grouped((fault, name) for name, stream in streams.items() for fault in faults_of(stream, wants))
    blemishes = grouped((fault, name) for name, stream in streams.items() for fault in blemishes_of(stream, wants))
    praise = f"{len(streams)} streams ({', '.join(streams)}) had one finish reason, then [DONE], then nothing"
    return by_faults(faults, blemishes, praise)


async def _chat(context: CheckContext, prompt: str) -> Transcript | None:
    """Return None if the server refuses to chat, as some models have no template."""
    messages = [{"role": "user", "content": prompt}]
    fields = {"model": context.server.model, "max_tokens": context.config.tokens, "stream": True}
    body = {"messages": messages, **fields, **context.server.extras}
    reply = (await context.record(context.server.target.request("POST", _CHAT, body))).reply()
    return read_transcript(reply) if reply.status == 200 else None


def faults_of(stream: Transcript, wants_usage: bool) -> list[str]:
    n_reasons = len(stream.finish_reasons)
    possible = {
        f"{n_reasons} finish reasons": n_reasons != 1,
        "text after the finish reason": n_reasons == 1 and _text_after_reason(stream),
        "no [DONE]": stream.n_after_done is None,
        f"{stream.n_after_done} events after [DONE]": bool(stream.n_after_done),
        "the body breaks off without the last chunk": not stream.is_whole,
        "no usage, which was asked for": wants_usage and not any(event.usage for event in stream.events),
    }
    return [f"an error: {error}" for error in stream.errors] + [fault for fault, is_so in possible.items() if is_so]


def blemishes_of(stream: Transcript, wants_usage: bool) -> list[str]:
    """Return deviations from OpenAI that most clients accept."""
    last = [event for event in stream.events if event.data is not None][-1:]
    has_usage = any(event.usage for event in stream.events)
    is_last_and_alone = any(event.usage and not event.parts for event in last)
    possible = {
        f"{len(stream.ids)} different ids": len(stream.ids) > 1,
        "the usage is not in an event of its own before [DONE]": wants_usage and has_usage and not is_last_and_alone,
    }
    return [blemish for blemish, is_so in possible.items() if is_so]


def _text_after_reason(stream: Transcript) -> bool:
    parts = [part for part in stream.parts if part.index == 0]
    place = next(place for place, part in enumerate(parts) if part.finish_reason)
    return any(part.text for part in parts[place + 1 :])


async def _ask_characters(context: CheckContext) -> Finding:
    n_tokens = context.config.tokens
    faults: list[str] = []
    blemishes: list[str] = []
    n_wide = 0
    for prompt in _PROMPTS:
        stream = await context.stream(prompt, n_tokens)
        whole = (await context.plain(prompt, n_tokens)).text
        again = (await context.plain(prompt, n_tokens)).text
        n_wide += sum(not character.isascii() for character in whole)
        faults += broken_pieces(stream, whole)
        if stream.text != whole:
            (faults if whole == again else blemishes).append("the pieces of the stream are not the text of the whole")
    found = by_faults(faults, blemishes, f"{n_wide} characters beyond ASCII, none broken, streamed as whole")
    if not n_wide and found.grade is Grade.PASS:
        return unknown("the model answered in ASCII alone")
    return found


def broken_pieces(stream: Transcript, whole: str) -> list[str]:
    """Return the broken characters of a stream that the complete answer does not have.

    The model itself may produce nonsense, or an answer that ends within a character.
    """
    faults = []
    n_broken = stream.text.count(_BROKEN) - whole.count(_BROKEN)
    if n_broken > 0:
        faults.append(f"{n_broken} replacement characters in the stream that are not in the whole")
    if any("\ud800" <= character <= "\udfff" for character in stream.text):
        faults.append("half of a surrogate pair")
    return faults


async def _ask_stops(context: CheckContext) -> Finding:
    (prompt,) = context.prompts("stop", 1)
    n_tokens = context.config.tokens
    stream = await context.stream(prompt, n_tokens)
    text = stream.text
    if text != (await context.stream(prompt, n_tokens)).text:
        return unknown("the same greedy request has two answers, so it is unknown where it should stop")
    faults, stops = [], stops_across(stream.deltas)
    for stop in stops:
        expected = text[: text.index(stop)]
        streamed = await context.stream(prompt, n_tokens, stop=[stop])
        whole = await context.plain(prompt, n_tokens, stop=[stop])
        faults += leaks_of("streamed", streamed.text, expected, stop) + leaks_of("whole", whole.text, expected, stop)
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


def leaks_of(form: str, text: str, expected: str, stop: str) -> list[str]:
    if text == expected:
        return []
    leaked = text.removeprefix(expected)
    if text.startswith(expected) and stop.startswith(leaked):
        return [f"{form}: {len(leaked)} characters of the stop string {stop!r} leaked"]
    return [f"{form}: the answer has {len(text)} characters and not the {len(expected)} before {stop!r}"]


OVERLAP = Question(
    "overlap", "Do several streams run at the same time, and is that faster than one after another?", _ask_overlap
)
ISOLATION = Question("isolation", "Is an answer the same in a batch, and free of other answers' text?", _ask_isolation)
TERMINAL = Question("terminal", "Does a stream end with one finish reason, then [DONE], then nothing?", _ask_terminal)
CHARACTERS = Question("characters", "Are characters of several tokens streamed whole?", _ask_characters)
STOPS = Question("stop-strings", "Does the text end right before a stop string, even across pieces?", _ask_stops)
