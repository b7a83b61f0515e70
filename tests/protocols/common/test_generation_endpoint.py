"""An endpoint reads a body, and refuses one for another model."""

from __future__ import annotations

import pytest

from sluiceway.errors import RequestError
from sluiceway.protocols.openai.requests import COMPLETIONS


def test_a_body_for_the_served_model_is_parsed() -> None:
    request = COMPLETIONS.read(b'{"model": "m", "prompt": "x"}', "m")
    assert (request.model, request.n_choices) == ("m", 1)


def test_a_body_for_another_model_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        COMPLETIONS.read(b'{"model": "other", "prompt": "x"}', "m")
    assert (caught.value.refusal.status, caught.value.refusal.param) == (404, "model")
