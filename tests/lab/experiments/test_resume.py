"""The verdicts of `resume`, from invented parts. `test_registry` runs the experiment."""

from __future__ import annotations

import re

import pytest

from sluiceway_lab.experiments import resume as module
from sluiceway_lab.experiments.cut_streams import ReceivedStream, Resumed, block
from sluiceway_lab.experiments.resume import figures_of, verdicts
from sluiceway_lab.load.record import Run
from support.labs import lab_of
from support.target_servers import target_server

WHOLE = b"".join(block(str(number), '{"text":"a"}') for number in (1, 2, 3))
GOOD = Resumed(ReceivedStream(WHOLE, n_cuts=4, n_after_end=1, waits_s=[0.1, 0.3]), WHOLE, WHOLE)
BAD = Resumed(ReceivedStream(WHOLE[1:], n_cuts=3), WHOLE, WHOLE.replace(b"a", b"b"))


def run(scenario: str, *found: Resumed) -> Run:
    return Run(server="s", scenario=scenario, streams=len(found), repeat=0, figures=figures_of(found))


def test_figures_count_streams_and_cuts() -> None:
    figures = figures_of([GOOD, BAD])
    assert figures == {
        "cuts": 7,
        "after_end": 1,
        "same_bytes": 1,
        "same_text": 1,
        "in_order": 1,
        "kept_bytes_per_stream": len(WHOLE),
        "first_event_s": pytest.approx(0.2),
    }
    assert "first_event_s" not in figures_of([BAD])


def test_one_bad_stream_of_one_client_refutes() -> None:
    lab = lab_of(run("our client, nginx", GOOD, GOOD), run("httpx-sse, nginx", GOOD, BAD))
    found = verdicts(lab)
    assert [one.stood for one in found] == [False, False, False, None]
    assert "our client, nginx: 2 of 2 streams, cut 8 times; httpx-sse, nginx: 1 of 2 streams" in found[0].sentence
    assert "left out" in found[3].sentence


def test_browser_must_stop_everywhere() -> None:
    mute = Resumed(ReceivedStream(WHOLE, n_cuts=4), WHOLE, WHOLE)
    stopped = verdicts(lab_of(run("a browser's EventSource, nginx", GOOD, GOOD)))
    assert [one.stood for one in stopped] == [True, True, True, True]
    endless = verdicts(lab_of(run("a browser's EventSource, nginx", GOOD, mute)))
    assert endless[3].stood is False and endless[3].sentence == "1 of 2"


def test_server_is_requested_directly_when_nginx_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "nginx_command", lambda: None)
    server = target_server()
    with module.behind_proxy(server) as (found, way):
        assert found is server and way == "no proxy"


@pytest.mark.parametrize("scenario", ["our client, nginx", "a browser's EventSource, nginx"])
def test_each_client_gets_two_hundred_cuts(scenario: str) -> None:
    plans = module.plans_of(lab_of(), scenario)
    assert sum(len(plan.cuts) for plan in plans) == 200
    assert len({plan.stream_id for plan in plans}) == len(plans)
    assert all(re.fullmatch(r"[a-z0-9-]{1,128}", plan.stream_id) for plan in plans)
    assert {plan.n_tokens > 300 for plan in plans} == {"browser" in scenario}
