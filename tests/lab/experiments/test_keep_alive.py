"""The verdicts of `keep-alive`, from invented answers. `test_registry` runs the experiment."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments import keep_alive as module
from sluiceway_lab.experiments.keep_alive import EXPERIMENT, SilenceScale, figures_of, verdicts
from sluiceway_lab.load import proxies
from sluiceway_lab.load.client import LoadError, Recording
from sluiceway_lab.load.record import Run, Verdict
from support.labs import lab_of
from support.scripted_http import DONE, STREAM_END, STREAM_HEAD, chunk, plain, token

COMMENT = chunk(b": \n\n")
SCALE = SilenceScale(4.0, 2.0, 0.5)


def recording(*reads: tuple[float, bytes], ended_s: float = 10.0) -> Recording:
    return Recording(0.0, reads, ended_s)


def test_whole_stream_tells_what_came_before_its_first_event() -> None:
    seen = figures_of(
        recording(
            (0.5, STREAM_HEAD + COMMENT),
            (1.0, COMMENT),
            (4.0, chunk(token("a"))),
            (4.5, COMMENT + chunk(token("b")) + chunk(DONE) + STREAM_END),
            ended_s=4.5,
        )
    )
    assert seen == {
        "whole": 1.0,
        "comments": 2.0,
        "longest_silence_s": 3.0,
        "first_event_s": 4.0,
        "events_over_s": 0.5,
    }


def test_stream_that_breaks_off_tells_when() -> None:
    seen = figures_of(recording((0.5, STREAM_HEAD), ended_s=2.5))
    assert seen == {"whole": 0.0, "comments": 0.0, "longest_silence_s": 2.0, "cut_after_s": 2.5}


@pytest.mark.parametrize("rest", [chunk(token("a")) + STREAM_END, chunk(DONE)], ids=["no terminal", "no end"])
def test_stream_without_its_terminal_or_its_end_is_not_whole(rest: bytes) -> None:
    assert figures_of(recording((0.5, STREAM_HEAD + rest)))["whole"] == 0.0


def test_gateway_timeout_is_a_cut_and_other_refusals_are_failures() -> None:
    """The page of a 504 may contain anything."""
    seen = figures_of(recording((2.0, plain(504, b"data: no")), ended_s=2.0))
    assert seen == {"whole": 0.0, "comments": 0.0, "longest_silence_s": 2.0, "cut_after_s": 2.0}
    with pytest.raises(LoadError, match="refused .503."):
        figures_of(recording((2.0, plain(503, b""))))


CUT = {"whole": 0.0, "comments": 0.0, "longest_silence_s": 2.0, "cut_after_s": 2.0}
HEARD = {"whole": 1.0, "comments": 5.0, "longest_silence_s": 0.5, "first_event_s": 4.0, "events_over_s": 0.3}
UNHEARD = HEARD | {"comments": 0.0, "longest_silence_s": 4.0, "events_over_s": 0.0}
SHORT = HEARD | {"comments": 0.0, "longest_silence_s": 1.0}
PAUSED = {"whole": 0.0, "computed_tokens": 22.0, "cut_after_s": 2.0}
UNFELT = {"whole": 0.0, "computed_tokens": 64.0}
GOOD = {
    "queued, as it comes, no comments": CUT,
    "queued, as it comes, comments": HEARD,
    "queued, buffering off, comments": HEARD,
    "queued, header ignored, comments": UNHEARD,
    "queued, ignored over 1.1, comments": HEARD,
    "reader stopped, as it comes, comments": PAUSED,
    "reader stopped, header ignored, comments": UNFELT,
}


def found(more: dict[str, dict[str, float]] | None = None, *, is_smoke: bool = False) -> Sequence[Verdict]:
    runs = [
        Run(server="s", scenario=scenario, streams=0, repeat=0, figures=figures)
        for scenario, figures in (GOOD | (more or {})).items()
    ]
    return verdicts(lab_of(*runs, is_smoke=is_smoke), SCALE)


def test_expected_figures_support_all_hypotheses() -> None:
    sentences = [one.sentence for one in found()]
    assert all(one.stood for one in found())
    assert sentences[0] == "1 of 1 were cut, after 2.00 to 2.00 s, where it waits 2 s"
    assert sentences[1] == "4 of 4 came to their end"
    assert sentences[2] == "comments before the first event: queued, as it comes 5, queued, buffering off 5"
    assert sentences[5] == "2 of 2 were cut, after 2.00 to 2.00 s"
    assert sentences[6] == "of 64 tokens were computed: as it comes 22, header ignored 64"


@pytest.mark.parametrize(
    ("scenario", "figures", "refuted"),
    [
        ("prefill, as it comes, no comments", UNHEARD, {0}),
        ("prefill, as it comes, no comments", SHORT, set()),
        ("queued, as it comes, comments", CUT, {1, 2}),
        ("queued, buffering off, comments", UNHEARD, {2}),
        ("queued, header ignored, comments", HEARD, {3}),
        ("queued, ignored over 1.1, comments", UNHEARD, {4}),
        ("reader stopped, as it comes, comments", PAUSED | {"whole": 1.0}, {5}),
        ("reader stopped, header ignored, comments", PAUSED, {6}),
    ],
)
def test_each_hypothesis_is_refuted_by_its_counterexample(
    scenario: str, figures: dict[str, float], refuted: set[int]
) -> None:
    """One run is enough. A prompt that was computed before nginx gave up decides nothing."""
    assert {place for place, one in enumerate(found({scenario: figures})) if not one.stood} == refuted


def test_smoke_run_judges_nothing() -> None:
    assert {one.stood for one in found(is_smoke=True)} == {None}


async def test_missing_nginx_is_an_error_before_servers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "nginx_command", lambda: None)
    with pytest.raises(ConfigError, match="apt-get install nginx"):
        await EXPERIMENT.run(lab_of())


def test_comments_come_before_nginx_gives_up() -> None:
    for scale in (module.FULL, module.SMOKE):
        assert scale.comments_s < scale.timeout_s < scale.silence_s
