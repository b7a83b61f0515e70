"""Reads the bodies of native requests."""

from __future__ import annotations

import pytest

from sluiceway.errors import RequestError
from sluiceway.protocols.common.generation import Endpoint, TokenUsage
from sluiceway.protocols.native.requests import GENERATE, STREAM


@pytest.mark.parametrize("endpoint", [STREAM, GENERATE])
def test_body_becomes_a_request_and_its_framer(endpoint: Endpoint) -> None:
    request = endpoint.read(b'{"prompt": "hi"}', "served")
    assert (request.model, request.stream) == ("served", endpoint is STREAM)
    start = endpoint.framer(request, "s-1", 7).start(TokenUsage(3, 0, 0))
    assert b'{"id":"s-1","model":"served","created":7,' in start


@pytest.mark.parametrize(("body", "param"), [(b"", None), (b"[]", None), (b"{}", "prompt"), (b'{"x": NaN}', "x")])
def test_a_body_that_is_no_json_or_no_request_is_refused(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        STREAM.read(body, "served")
    assert (caught.value.refusal.status, caught.value.refusal.param) == (400, param)
