"""Measures what nginx does with a silent stream, with our comments and without.

Everything is faster than usual: nginx waits two seconds instead of sixty, and comments come every half second instead
of every fifteen.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sluiceway_lab.experiments.experiment import Experiment, Lab, counted, values_of
from sluiceway_lab.experiments.readers import stalled
from sluiceway_lab.load.client import LoadError, Recording, dial, parse_reply, record, until
from sluiceway_lab.load.proxies import ProxyRules, own_proxy, require_nginx
from sluiceway_lab.load.record import Run, Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import long_prompt, prompts

_TOKENS = 16
_STEP_TOKENS = 8
"""Small steps, so that a prompt takes long."""
_TRIED_WORDS, _MORE_WORDS = 60, 1.3
_PAD_BYTES, _PADDED_TOKENS = 16 * 1024, 64
"""More than the sockets can hold. The server notices a stopped reader, unless nginx reads in its place."""
_LIMIT_S = 60.0
_POLL_S = 0.05
_COMMENT = re.compile(rb"^:", re.MULTILINE)
_EVENT = re.compile(rb"^data: ", re.MULTILINE)
_IGNORED, _IGNORED_CHUNKS = "header ignored", "ignored over 1.1"
_PROXIES = {
    "as it comes": ProxyRules(),
    "buffering off": ProxyRules(http_version="1.1", buffers=False),
    _IGNORED: ProxyRules(heeds_header=False),
    _IGNORED_CHUNKS: ProxyRules(http_version="1.1", heeds_header=False),
}
_QUEUED, _PREFILL, _STOPPED = "queued", "prefill", "reader stopped"


@dataclass(frozen=True, slots=True)
class SilenceScale:
    """The times: how long a stream is silent, how long nginx waits, and how often comments come."""

    silence_s: float
    timeout_s: float
    comments_s: float

    @property
    def stopped_s(self) -> float:
        """How long a reader stops. It is longer, because the timeout of nginx starts again with each piece."""
        return 1.5 * self.silence_s


FULL, SMOKE = SilenceScale(4.0, 2.0, 0.5), SilenceScale(1.2, 0.7, 0.2)


async def _run(lab: Lab) -> list[Verdict]:
    require_nginx()
    scale = lab.pick(FULL, SMOKE)
    async with lab.server("--max-running", "1", "--max-step-tokens", str(_STEP_TOKENS)) as server:
        with _proxies(server, scale) as found:
            choices = _choices(found, scale)
            await _queued(lab, server, choices, scale)
            await _prefilled(lab, server, lab.pick(choices, choices[:2]), scale)
    async with lab.server("--max-running", str(len(_PROXIES)), pad_bytes=_PAD_BYTES) as server:
        with _proxies(server, scale) as found:
            await _stopped(lab, server, found, scale)
    return verdicts(lab, scale)


@contextlib.contextmanager
def _proxies(server: TargetServer, scale: SilenceScale) -> Iterator[dict[str, TargetServer]]:
    """Start all proxies, and yield the server at its address behind each."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, rules in _PROXIES.items():
            hurried = replace(rules, read_timeout_s=scale.timeout_s, send_timeout_s=scale.timeout_s)
            found[name] = replace(server, target=stack.enter_context(own_proxy(server.target, hurried)))
        yield found


@dataclass(frozen=True, slots=True)
class Choice:
    """A proxy, with comments or without. `server` has its address behind the proxy."""

    name: str
    server: TargetServer
    comments_s: float

    async def ask(self, prompt: str) -> dict[str, float]:
        """Return what a client sees of its stream."""
        request = self.server.request(prompt, _TOKENS, sluiceway={"keep_alive_s": self.comments_s})
        return figures_of(await record(self.server.target, request, _LIMIT_S))


def _choices(found: dict[str, TargetServer], scale: SilenceScale) -> list[Choice]:
    intervals = {"no comments": 0.0, "comments": scale.comments_s}
    pairs = itertools.product(found.items(), intervals.items())
    return [Choice(f"{proxy}, {words}", server, comments_s) for (proxy, server), (words, comments_s) in pairs]


async def _queued(lab: Lab, server: TargetServer, choices: Sequence[Choice], scale: SilenceScale) -> None:
    """Queue all requests at the same time behind a request that has the only slot."""
    texts = prompts(lab.seed, "keep-alive", len(choices))
    async with _occupied(server, scale.silence_s):
        seen = await asyncio.gather(*(choice.ask(text) for choice, text in zip(choices, texts, strict=True)))
    for choice, figures in zip(choices, seen, strict=True):
        lab.note(server.name, f"{_QUEUED}, {choice.name}", figures)


@contextlib.asynccontextmanager
async def _occupied(server: TargetServer, for_s: float) -> AsyncIterator[None]:
    """Occupy the only slot for so long. As the first request of the server it runs before all others."""
    async with dial(server.target) as connection:
        connection.send(server.request("once", 100_000))
        await connection.read_some(_LIMIT_S)
        left = asyncio.get_running_loop().call_later(for_s, connection.finish)
        try:
            yield
        finally:
            left.cancel()


async def _prefilled(lab: Lab, server: TargetServer, choices: Sequence[Choice], scale: SilenceScale) -> None:
    """Send one request after another, each with a prompt that takes so long to compute."""
    for choice in choices:
        n_words = await _words_for(lab, server, choice.name, scale.silence_s)
        prompt = long_prompt(lab.seed, f"keep-alive/{choice.name}", n_words)
        lab.note(server.name, f"{_PREFILL}, {choice.name}", await choice.ask(prompt))


async def _words_for(lab: Lab, server: TargetServer, name: str, silence_s: float) -> int:
    """Return the length of such a prompt, from the current speed of a short one. Long prompts have less overhead."""
    request = server.request(long_prompt(lab.seed, f"keep-alive/pace/{name}", _TRIED_WORDS), 1)
    took_s = figures_of(await record(server.target, request, _LIMIT_S))["first_event_s"]
    return math.ceil(_MORE_WORDS * _TRIED_WORDS * silence_s / took_s)


async def _stopped(lab: Lab, server: TargetServer, found: dict[str, TargetServer], scale: SilenceScale) -> None:
    """All readers stop at the same time for so long, and then read the rest."""
    seen = await asyncio.gather(
        *(
            _unread(server, where, f"lab-keep-alive-{lab.seed}-{number}", scale)
            for number, where in enumerate(found.values())
        )
    )
    for proxy, figures in zip(found, seen, strict=True):
        lab.note(server.name, f"{_STOPPED}, {proxy}, comments", figures)


async def _unread(server: TargetServer, where: TargetServer, stream_id: str, scale: SilenceScale) -> dict[str, float]:
    fields = {"stream_id": stream_id, "keep_alive_s": scale.comments_s, "slow_client": "pause"}
    request = where.request("once", _PADDED_TOKENS, sluiceway=fields)
    async with stalled(where.target, request, is_narrow=True) as connection:
        await asyncio.sleep(scale.stopped_s)
        connection.resume()
        raw = await connection.read_rest(_LIMIT_S)
    stream = await _over(server, stream_id)
    is_whole, computed = parse_reply([(0.0, raw)]).is_whole, stream["tokens"]["generated"]
    figures = {"whole": float(is_whole), "computed_tokens": float(computed), "longest_silence_s": scale.stopped_s}
    # If the stream had already ended at the server, only nginx knows when it was cut.
    is_known = not is_whole and computed < _PADDED_TOKENS
    return figures | ({"cut_after_s": stream["ended"] - stream["created"]} if is_known else {})


async def _over(server: TargetServer, stream_id: str) -> dict[str, Any]:
    """Wait until a stream has ended, and return what the server says about it. Raises `LoadError`."""

    async def look() -> dict[str, Any]:
        stream = await server.json(f"/v1/streams/{stream_id}")
        return stream if stream.get("ended") is not None else {}

    return await until(look, f"the end of the stream {stream_id}", limit_s=_LIMIT_S, pause_s=_POLL_S)


def figures_of(recording: Recording) -> dict[str, float]:
    """Return what a client saw of its stream. Raises `LoadError` if it was refused."""
    reply = recording.reply()
    if reply.status not in (200, 504):
        raise LoadError(f"the server refused ({reply.status})")
    event_s = [at_s for at_s, raw in reply.pieces for _ in _EVENT.findall(raw)] if reply.status == 200 else []
    before = [raw for at_s, raw in reply.pieces if not event_s or at_s < event_s[0]]
    heard_s = [recording.started_s, *(at_s for at_s, _ in recording.reads), recording.ended_s]
    is_whole = reply.status == 200 and reply.is_whole and b"data: [DONE]" in reply.body
    figures = {
        "whole": float(is_whole),
        "comments": float(len(_COMMENT.findall(b"".join(before)))),
        "longest_silence_s": max(later - earlier for earlier, later in itertools.pairwise(heard_s)),
    }
    if event_s:
        figures |= {"first_event_s": event_s[0] - recording.started_s, "events_over_s": event_s[-1] - event_s[0]}
    return figures | ({} if is_whole else {"cut_after_s": recording.ended_s - recording.started_s})


def verdicts(lab: Lab, scale: SilenceScale) -> list[Verdict]:
    idle = [run for run in lab.runs if not run.scenario.startswith(_STOPPED)]
    mute = [run for run in idle if run.scenario.endswith("no comments")]
    said = [run for run in idle if run not in mute]
    found = [
        _mute(mute, scale),
        counted(
            "with comments none is cut, whatever nginx does with them",
            [run.figures["whole"] == 1 for run in said],
            "came to their end",
        ),
        *_heard(said),
        *_stops([run for run in lab.runs if run not in idle]),
    ]
    return [lab.timed(one.hypothesis, one.stood, one.sentence) for one in found]


def _mute(runs: Sequence[Run], scale: SilenceScale) -> Verdict:
    mute = [run for run in runs if not run.figures["whole"] or run.figures["longest_silence_s"] > scale.timeout_s]
    return counted(
        "without comments nginx cuts every stream that is silent for longer than its proxy_read_timeout",
        [not run.figures["whole"] for run in mute],
        f"were cut{_after(mute)}, where it waits {scale.timeout_s:g} s",
    )


def _after(runs: Sequence[Run]) -> str:
    """Say when streams were cut, if that is known."""
    cut_s = values_of(runs, "cut_after_s")
    return f", after {min(cut_s):.2f} to {max(cut_s):.2f} s" if cut_s else ""


def _heard(said: Sequence[Run]) -> Iterator[Verdict]:
    """Judge whether what the server sends reaches the client immediately."""
    by_proxy = {name: [run for run in said if run.scenario.split(", ")[1] == name] for name in _PROXIES}
    held, chunked = by_proxy.pop(_IGNORED), by_proxy.pop(_IGNORED_CHUNKS)
    yield _through(
        "`X-Accel-Buffering: no` is as good as `proxy_buffering off`: comments arrive, and events one by one",
        [run for runs in by_proxy.values() for run in runs],
    )
    most_s = max(run.figures.get("events_over_s", 0.0) for run in held)
    yield Verdict(
        "where nginx ignores the header and speaks HTTP/1.0, everything arrives together at the end, comments too",
        all(run.figures["comments"] == 0 for run in held),
        f"{sum(run.figures['comments'] for run in held):.0f} comments in {len(held)} silences of up to "
        f"{max(run.figures['longest_silence_s'] for run in held):.1f} s; then all events within {most_s * 1e3:.0f} ms",
    )
    yield _through("over HTTP/1.1 it passes every chunk on, though it ignores the header and buffers", chunked)


def _through(hypothesis: str, runs: Sequence[Run]) -> Verdict:
    counts = ", ".join(f"{run.scenario.removesuffix(', comments')} {run.figures['comments']:.0f}" for run in runs)
    return Verdict(
        hypothesis,
        all(run.figures["comments"] > 0 and run.figures.get("events_over_s", 0.0) > 0 for run in runs),
        f"comments before the first event: {counts}",
    )


def _stops(stopped: Sequence[Run]) -> Iterator[Verdict]:
    """Judge readers that stop for longer than nginx waits."""
    computed = {run.scenario.split(", ")[1]: run.figures["computed_tokens"] for run in stopped}
    counts = ", ".join(f"{name} {n_tokens:.0f}" for name, n_tokens in computed.items())
    yield counted(
        "a reader that takes nothing for longer than nginx's send_timeout is cut, comments or not",
        [not run.figures["whole"] for run in stopped],
        f"were cut{_after(stopped)}",
    )
    yield Verdict(
        "where nginx buffers, the server does not notice such a reader and computes the whole answer; else it pauses",
        all((n_tokens == _PADDED_TOKENS) == (not _passes_on(_PROXIES[name])) for name, n_tokens in computed.items()),
        f"of {_PADDED_TOKENS} tokens were computed: {counts}",
    )


def _passes_on(rules: ProxyRules) -> bool:
    """True if nginx reads no more of an answer than the client does. Our server asks for that."""
    return not rules.buffers or rules.heeds_header


EXPERIMENT = Experiment(
    name="keep-alive",
    question="A stream is silent behind nginx: what does the proxy do with it?",
    run=_run,
    columns=(
        Column("whole", "whole", digits=0),
        Column("cut_after_s", "cut after s", digits=2),
        Column("comments", "comments heard", digits=0),
        Column("longest_silence_s", "longest silence s", digits=2),
        Column("first_event_s", "first event s", digits=2),
        Column("events_over_s", "events over ms", 1e3, 0),
        Column("computed_tokens", "tokens computed", digits=0),
    ),
    drawn=("comments", "longest_silence_s"),
    not_shown=(
        "nginx's own times, a minute each: everything is thirty times as fast here",
        "other proxies: what they do with a silence is theirs",
    ),
)
