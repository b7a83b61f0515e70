"""Comparing token ids of answers alone and in a batch."""

from __future__ import annotations

import json

from sluiceway.sse.event import ServerEvent
from sluiceway_lab.experiments.isolation import compared, verdict
from sluiceway_lab.experiments.native import NativeStream
from support.labs import lab_of
from support.records import run


def answer(*token_ids: int, leads: tuple[float, ...] = (0.5, 0.25, 0.75)) -> NativeStream:
    tokens = [
        {"id": token_id, "top": [{"logprob": 0.0}, {"logprob": -lead}]}
        for token_id, lead in zip(token_ids, leads, strict=False)
    ]
    return NativeStream(tuple(ServerEvent(data=json.dumps(token), event="token") for token in tokens), n_bytes=0)


def test_answers_are_compared_token_by_token() -> None:
    """The lead is that of the likeliest token in the answer alone, at the first difference."""
    alone = [answer(1, 2), answer(3, 4, leads=(0.5, 0.125))]
    assert compared(alone, alone) == {"answers": 2.0, "same": 2.0, "least_lead": 0.125}
    alone = [answer(1, 2, 3), answer(3, 4, 5, leads=(1.0, 0.0625, 2.0)), answer(6, 7, 8)]
    found = compared(alone, [answer(1, 2, 9), answer(3, 0, 5, leads=(1.0, 9.0, 2.0)), answer(6, 7, 8)])
    assert found == {
        "answers": 3.0,
        "same": 1.0,
        "least_lead": 0.0625,
        "first_divergence_tokens": 1.0,
        "divergence_lead": 0.0625,
    }


def test_answer_that_is_cut_short_parts_where_it_ends() -> None:
    found = compared([answer(1, 2, 3)], [answer(1, 2)])
    assert (found["first_divergence_tokens"], found["divergence_lead"]) == (2.0, 0.75)
    found = compared([answer(1, 2)], [answer(1, 2, 3)])
    assert found["first_divergence_tokens"] == 2.0 and "divergence_lead" not in found


def test_verdict_counts_all_runs_of_a_server() -> None:
    lab = lab_of(
        run("bfloat16", "greedy", 2, answers=2.0, same=2.0, least_lead=0.5),
        run("bfloat16", "greedy", 4, answers=4.0, same=3.0, least_lead=0.25, first_divergence_tokens=9.0),
        run(
            "int8",
            "greedy",
            4,
            answers=4.0,
            same=3.0,
            least_lead=0.25,
            first_divergence_tokens=9.0,
            divergence_lead=0.25,
        ),
        run("float32", "greedy", 4, answers=4.0, same=4.0, least_lead=0.001234),
    )
    parted, led, kept = (verdict(lab, name, "greedy") for name in ("bfloat16", "int8", "float32"))
    assert (parted.stood, led.stood, kept.stood) == (False, False, True)
    assert parted.sentence.startswith("5 of 6 answers") and "came after 9 tokens; the smallest" in parted.sentence
    assert "after 9 tokens, and where they differ the lead of the likeliest token was at most 0.25; the" in led.sentence
    assert kept.sentence == (
        "4 of 4 answers have the token ids that they have alone; "
        "the smallest lead of all was 0.00123 in log-probability"
    )
