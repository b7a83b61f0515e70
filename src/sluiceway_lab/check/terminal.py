"""Asks whether a stream ends with one finish reason, the usage if requested, `[DONE]`, and nothing after it."""

from __future__ import annotations

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question, by_faults
from sluiceway_lab.load.transcript import Transcript, read_transcript

_CHAT = "/v1/chat/completions"


async def _ask(context: CheckContext) -> Finding:
    (prompt,) = context.prompts("terminal", 1)
    at_length = await context.stream(prompt, context.config.tokens)
    stop = at_length.text[len(at_length.text) // 2 :][:4]
    streams = {
        "at the length": at_length,
        "at a stop string": await context.stream(prompt, context.config.tokens, stop=stop),
    }
    if (chat := await _chat(context, prompt)) is not None:
        streams["of a chat"] = chat
    faults = _told({name: faults_of(said, context.has_usage) for name, said in streams.items()})
    blemishes = _told({name: blemishes_of(said, context.has_usage) for name, said in streams.items()})
    praise = f"{len(streams)} streams ({', '.join(streams)}) had one finish reason, then [DONE], then nothing"
    return by_faults(faults, blemishes, praise)


def _told(found: dict[str, list[str]]) -> list[str]:
    """Name each fault once, with the streams that have it."""
    streams_by_fault: dict[str, list[str]] = {}
    for name, faults in found.items():
        for fault in faults:
            streams_by_fault.setdefault(fault, []).append(name)
    return [f"{fault} ({', '.join(names)})" for fault, names in streams_by_fault.items()]


async def _chat(context: CheckContext, prompt: str) -> Transcript | None:
    """Return None if the server refuses to chat, as some models have no template."""
    fields = {
        "model": context.server.model,
        "max_tokens": context.config.tokens,
        "stream": True,
        **context.server.extras,
    }
    body = {"messages": [{"role": "user", "content": prompt}], **fields}
    reply = (await context.record(context.server.target.request("POST", _CHAT, body))).reply()
    return read_transcript(reply) if reply.status == 200 else None


def faults_of(said: Transcript, wants_usage: bool) -> list[str]:
    faults = [f"an error: {error}" for error in said.errors]
    if len(said.finish_reasons) != 1:
        faults.append(f"{len(said.finish_reasons)} finish reasons")
    elif _text_after_reason(said):
        faults.append("text after the finish reason")
    if said.n_after_done is None:
        faults.append("no [DONE]")
    elif said.n_after_done:
        faults.append(f"{said.n_after_done} events after [DONE]")
    if not said.is_whole:
        faults.append("the body breaks off without the last chunk")
    if wants_usage and not any(event.usage for event in said.events):
        faults.append("no usage, which was asked for")
    return faults


def blemishes_of(said: Transcript, wants_usage: bool) -> list[str]:
    """Return deviations from OpenAI that most clients accept."""
    blemishes = [f"{len(said.ids)} different ids"] if len(said.ids) > 1 else []
    told = [event for event in said.events if event.usage]
    if wants_usage and told and not _is_last_and_alone(said):
        blemishes.append("the usage is not in an event of its own before [DONE]")
    return blemishes


def _is_last_and_alone(said: Transcript) -> bool:
    events = [event for event in said.events if event.data is not None]
    return bool(events[-1].usage) and not events[-1].parts


def _text_after_reason(said: Transcript) -> bool:
    parts = [part for part in said.parts if part.index == 0]
    place = next(place for place, part in enumerate(parts) if part.finish_reason)
    return any(part.text for part in parts[place + 1 :])


QUESTION = Question("terminal", "Does a stream end with one finish reason, then [DONE], then nothing?", _ask)
