"""The JSON of an error, and that the SDK reads all of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from sluiceway.errors import Refusal
from sluiceway.protocols.common.errors import error_body, error_type, model_not_found, refusal_for_status


def test_error_has_all_four_keys() -> None:
    """`param` is null when the error is about no field."""
    body = json.loads(error_body(Refusal(status=503, code="draining", message="later")))
    assert body == {"error": {"message": "later", "type": "server_error", "param": None, "code": "draining"}}


def test_a_lone_surrogate_in_the_message_is_replaced() -> None:
    """It cannot be encoded, and a message may quote wrong text."""
    assert "\ufffd" in json.loads(error_body(Refusal(status=400, code="x", message="\ud800")))["error"]["message"]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (405, "invalid_request_error"),
        (413, "invalid_request_error"),
        (415, "invalid_request_error"),
        (422, "invalid_request_error"),
        (429, "rate_limit_error"),
        (499, "invalid_request_error"),
        (500, "server_error"),
        (503, "server_error"),
        (504, "server_error"),
    ],
)
def test_type_depends_on_the_status(status: int, expected: str) -> None:
    """It says whether the client or the server made the error, and whether a retry may help."""
    assert error_type(status) == expected


@pytest.mark.parametrize("status", [400, 404, 405, 408, 413, 415, 421, 431, 501, 505])
def test_usual_status_has_a_code_and_a_sentence(status: int) -> None:
    refusal = refusal_for_status(status)
    assert refusal.status == status
    assert not refusal.code.startswith("http_")
    assert refusal.message.endswith(".")


def test_rare_status_has_a_code_made_from_its_number() -> None:
    refusal = refusal_for_status(418)
    assert (refusal.status, refusal.code) == (418, "http_418")
    assert "418" in refusal.message


def test_given_message_replaces_the_usual_one() -> None:
    assert refusal_for_status(405, "Use POST.") == Refusal(status=405, code="method_not_allowed", message="Use POST.")


def test_unknown_model_is_refused_with_its_shortened_name() -> None:
    """The client chose the name, so it may be long. OpenAI answers 404 too."""
    refusal = model_not_found("x" * 1000, "served-one")
    assert (refusal.status, refusal.code, refusal.param) == (404, "model_not_found", "model")
    assert "xxx" in refusal.message and 'this server serves "served-one"' in refusal.message
    assert len(refusal.message) < 200


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (503, openai.InternalServerError),
    ],
)
def test_sdk_raises_the_message_code_param_and_type(status: int, kind: type[openai.APIStatusError]) -> None:
    body = error_body(Refusal(status=status, code="word", message="A sentence.", param="messages[0]"))
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    client_of_any_version: Any = httpx.Client(transport=transport)
    with (
        client_of_any_version as http,
        openai.OpenAI(api_key="k", base_url="http://server/v1", http_client=http, max_retries=0) as client,
        pytest.raises(kind) as caught,
    ):
        client.models.list()
    error = caught.value
    assert (error.code, error.param, error.type) == ("word", "messages[0]", error_type(status))
    assert "A sentence." in error.message
