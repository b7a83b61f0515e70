"""Native requests from their bytes."""

from __future__ import annotations

import pytest

from sluiceway.errors import RequestError
from sluiceway.protocols.common.generation import Usage
from sluiceway.protocols.native.request import parse_native


@pytest.mark.parametrize("is_streamed", [True, False])
def test_request_is_read_and_its_framer_made_when_it_is_whole(is_streamed: bool) -> None:
    """The framer has the identity that the server gives."""
    request = parse_native(b'{"prompt": "hi"}', "served", is_streamed=is_streamed)
    assert (request.generation.model, request.generation.stream) == ("served", is_streamed)
    start = request.framer(response_id="s-1", model="m", created=7).start(Usage(3, 0, 0))
    assert b'{"id":"s-1","model":"m","created":7,' in start


@pytest.mark.parametrize(("body", "param"), [(b"", None), (b"[]", None), (b"{}", "prompt"), (b'{"x": NaN}', "x")])
def test_request_is_refused_when_any_stage_finds_a_fault(body: bytes, param: str | None) -> None:
    """What is no JSON, and what is no request."""
    with pytest.raises(RequestError) as caught:
        parse_native(body, "served", is_streamed=True)
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, param)
