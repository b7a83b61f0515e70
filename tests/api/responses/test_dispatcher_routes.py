"""Every sequence has one route until its end, and the counts of the tables balance."""

from __future__ import annotations

import pytest

from sluiceway.api.responses.response import Response
from sluiceway.errors import Refusal
from sluiceway.ipc.messages.to_api import Accepted, Delta, Events, Rejected
from sluiceway.ipc.messages.to_child import Role
from sluiceway.protocols.openai.requests import COMPLETIONS
from sluiceway.types import FinishReason
from support.asgi_driver import MODEL, Api, completion, finished
from support.specs import NoWriter, spec_of

REFUSAL = Refusal(status=400, code="context_length_exceeded", message="Too long.")


@pytest.fixture
def api() -> Api:
    """An API with one response that has three choices: 1, 2 and 3."""
    api = Api()
    opened(api, n=3)
    return api


def opened(api: Api, n: int = 1) -> Response:
    request = COMPLETIONS.read(completion(n=n), MODEL)
    response, _ = api.dispatcher.open(spec_of(request, stream_id=f"s{n}"), NoWriter())
    return response


def counts(api: Api) -> dict[str, int]:
    """The counts that are not zero. It checks that the tables balance."""
    assert api.dispatcher.violations() == []
    return {name: count for name, count in api.dispatcher.account().items() if count and name != "sessions"}


def test_events_reach_their_choice(api: Api) -> None:
    """An event of an unknown sequence is ignored."""
    api.upstream.say(*(Accepted(rid, 1, 0) for rid in (1, 2, 3)), Delta(2, "b", (1,)), Delta(9, "x", (1, 2)))
    (response,) = api.dispatcher.registry
    assert response.record.completion_tokens == 1
    assert api.wasted_tokens == 2 and counts(api) == {"live": 3, "submitted": 3, "accepted": 3}


def test_a_cancelled_sequence_is_counted_until_its_end(api: Api) -> None:
    """Only a running sequence is cancelled, and only once. A second end changes nothing."""
    api.dispatcher.cancel([2, 3, 9], FinishReason.CANCELLED)
    api.dispatcher.cancel([2, 3], FinishReason.DRAINING)
    assert [cancel.rids for cancel in api.upstream.cancels] == [(2, 3)]
    assert counts(api) == {"live": 1, "tombstones": 2, "submitted": 3}
    for _ in range(2):
        api.upstream.say(finished(2, FinishReason.CANCELLED))
        assert counts(api) == {"live": 1, "tombstones": 1, "submitted": 3, "finished": 1}


def test_every_sequence_ends_when_its_process_died(api: Api) -> None:
    """Cancelled ones end too, since no event will come."""
    api.dispatcher.cancel([1], FinishReason.CANCELLED)
    api.dispatcher.peer_down(Role.ENGINE, hung=False)
    assert counts(api) == {"submitted": 3, "finished": 3}


def test_a_rejected_request_leaves_no_route(api: Api) -> None:
    """A part of it may have been cancelled meanwhile. A rejection does not count as an end."""
    api.dispatcher.cancel([3], FinishReason.CANCELLED)
    api.dispatcher.receive(Events(events=[Rejected((1, 2, 3, 4), REFUSAL)]))
    assert counts(api) == {"submitted": 3, "rejected": 3}


def test_a_sequence_that_is_counted_twice_is_reported(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its route replaces the one of another sequence, so the counts disagree."""
    monkeypatch.setattr(api.dispatcher, "_next_rid", lambda: 3)
    opened(api)
    (sentence,) = api.dispatcher.violations()
    assert "4 sequences were submitted" in sentence and "are 3" in sentence
