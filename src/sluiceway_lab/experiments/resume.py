"""Cuts connections at random tokens, resumes with `Last-Event-ID`, and compares with streams that were not cut."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sluiceway_lab.experiments.cut_streams import (
    Client,
    CutPlan,
    Resumed,
    browser_client,
    library_client,
    own_client,
    resumed,
)
from sluiceway_lab.experiments.experiment import Experiment, Lab
from sluiceway_lab.load.browser import browser_command
from sluiceway_lab.load.proxies import ProxyRules, nginx_command, own_proxy
from sluiceway_lab.load.record import Run, Verdict
from sluiceway_lab.load.tables import Column
from sluiceway_lab.load.target_server import TargetServer
from sluiceway_lab.load.workload import prompts

_STREAMS, _TOKENS, _CUTS = 50, 64, 4
_BROWSER_TOKENS = 400
"""Long enough that a stream still runs when the browser reconnects, three seconds after a cut."""
_SMOKE_STREAMS, _SMOKE_TOKENS = 2, 24
_TOGETHER = 6
"""A browser opens at most six connections to a server."""
_OWN, _LIBRARY, _BROWSER = "our client", "httpx-sse", "a browser's EventSource"


async def _run(lab: Lab) -> list[Verdict]:
    """Run all clients at the same time, because a browser waits seconds before it reconnects."""
    async with lab.server() as server:
        with behind_proxy(server) as (found, way):
            async with asyncio.TaskGroup() as clients:
                clients.create_task(_measure(lab, found, f"{_OWN}, {way}", own_client))
                clients.create_task(_measure(lab, found, f"{_LIBRARY}, {way}", library_client))
                if browser_command() is not None and found is not server:
                    clients.create_task(_browse(lab, server, way))
    return verdicts(lab)


@contextlib.contextmanager
def behind_proxy(server: TargetServer) -> Iterator[tuple[TargetServer, str]]:
    """Yield the server at its address behind nginx, and what is between. Without nginx it is the server itself."""
    if nginx_command() is None or server.target.is_tls:
        yield server, "no proxy"
        return
    with own_proxy(server.target, ProxyRules(http_version="1.1")) as target:
        yield replace(server, target=target), "nginx"


async def _browse(lab: Lab, server: TargetServer, way: str) -> None:
    async with browser_client(server) as (found, client):
        await _measure(lab, found, f"{_BROWSER}, {way}", client)


async def _measure(lab: Lab, server: TargetServer, scenario: str, client: Client) -> None:
    free = asyncio.Semaphore(_TOGETHER)
    plans = plans_of(lab, scenario)

    async def one(plan: CutPlan) -> Resumed:
        async with free:
            return await resumed(server, plan, client)

    found = await asyncio.gather(*map(one, plans))
    lab.note(server.name, scenario, figures_of(found), streams=len(found))


def plans_of(lab: Lab, scenario: str) -> list[CutPlan]:
    name = f"lab-resume-{lab.seed}-{re.sub('[^a-z]+', '-', scenario.lower())}"
    if lab.is_smoke:
        # One is cut, and one waits for the end. Each of these costs a browser three seconds.
        first, second = prompts(lab.seed, name, _SMOKE_STREAMS)
        cut = CutPlan.drawn(f"{name}-0", first, _SMOKE_TOKENS, 1, hears_out=False)
        return [cut, CutPlan.drawn(f"{name}-1", second, _SMOKE_TOKENS, 0)]
    n_tokens = _BROWSER_TOKENS if scenario.startswith(_BROWSER) else _TOKENS
    texts = prompts(lab.seed, name, _STREAMS)
    return [CutPlan.drawn(f"{name}-{number}", text, n_tokens, _CUTS) for number, text in enumerate(texts)]


def figures_of(found: Sequence[Resumed]) -> dict[str, float]:
    waits_s = [wait_s for one in found for wait_s in one.received.waits_s]
    figures: dict[str, float] = {
        "cuts": sum(one.received.n_cuts for one in found),
        "after_end": sum(one.received.n_after_end for one in found),
        "same_bytes": sum(one.has_same_bytes for one in found),
        "same_text": sum(one.has_same_text for one in found),
        "in_order": sum(one.is_in_order for one in found),
        "kept_bytes_per_stream": statistics.mean(len(one.replay) for one in found),
    }
    return figures | ({"first_event_s": statistics.median(waits_s)} if waits_s else {})


def verdicts(lab: Lab) -> list[Verdict]:
    claims = {
        "same_bytes": "the parts together are the stream that the server has kept, byte by byte",
        "in_order": "no event is missing or repeated",
        "same_text": "the text is that of the same request without cuts",
    }
    found = [
        Verdict(
            claim,
            all(run.figures[figure] == run.streams for run in lab.runs),
            "; ".join(_counted(run, figure) for run in lab.runs),
        )
        for figure, claim in claims.items()
    ]
    return [*found, _stops(lab)]


def _counted(run: Run, figure: str) -> str:
    held, cuts = run.figures[figure], run.figures["cuts"]
    return f"{run.scenario}: {held:.0f} of {run.streams} streams, cut {cuts:.0f} times"


def _stops(lab: Lab) -> Verdict:
    claim = "an EventSource also reconnects after the end; the answer is then 204, and it stops"
    browsed = [run for run in lab.runs if run.scenario.startswith(_BROWSER)]
    if not browsed:
        return Verdict(claim, None, "left out: it takes nginx and Chromium, and a server that speaks no TLS")
    n_stopped = browsed[0].figures["after_end"]
    n_waiting = lab.pick(browsed[0].streams, 1)
    return Verdict(claim, n_stopped == n_waiting, f"{n_stopped:.0f} of {n_waiting}")


EXPERIMENT = Experiment(
    name="resume",
    question="A stream is cut at random tokens and resumed: is it the same as without cuts?",
    run=_run,
    columns=(
        Column("cuts", "cuts", digits=0),
        Column("same_bytes", "same bytes", digits=0),
        Column("in_order", "in order", digits=0),
        Column("same_text", "same text", digits=0),
        Column("after_end", "stopped by 204", digits=0),
        Column("first_event_s", "next event ms, p50", 1e3),
        Column("kept_bytes_per_stream", "kept kB a stream", 1e-3),
    ),
    drawn=("cuts", "same_bytes", "first_event_s"),
    not_shown=(
        "streams of which a part is not kept any more",
        "how soon a browser could come back: it waits for three seconds of its own before it does",
    ),
)
