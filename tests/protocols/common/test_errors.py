"""The envelope, and that the SDK reads all of it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from sluiceway.errors import Refusal
from sluiceway.protocols.common.errors import error_body, error_type, model_not_found, refusal_for_status


def test_envelope_has_all_four_keys_when_no_field_is_at_fault() -> None:
    """Null, not absent."""
    body = json.loads(error_body(Refusal(status=503, code="draining", message="later")))
    assert body == {"error": {"message": "later", "type": "server_error", "param": None, "code": "draining"}}


def test_envelope_is_written_when_the_message_has_half_a_character() -> None:
    """An error about bad text must not fail on it."""
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
def test_type_follows_the_status_when_asked(status: int, expected: str) -> None:
    """Who is to blame, and whether trying again may help."""
    assert error_type(status) == expected


@pytest.mark.parametrize("status", [400, 404, 405, 408, 413, 415, 421, 431, 501, 505])
def test_status_has_a_word_and_a_sentence_when_the_router_gives_it(status: int) -> None:
    """Of its own."""
    refusal = refusal_for_status(status)
    assert refusal.status == status
    assert not refusal.code.startswith("http_")
    assert refusal.message.endswith(".")


def test_status_is_answered_when_it_is_rare() -> None:
    """Nothing falls out of the envelope."""
    refusal = refusal_for_status(418)
    assert (refusal.status, refusal.code) == (418, "http_418")
    assert "418" in refusal.message


def test_sentence_of_the_caller_is_told_when_there_is_one() -> None:
    """The router may know more."""
    assert refusal_for_status(405, "Use POST.") == Refusal(status=405, code="method_not_allowed", message="Use POST.")


def test_model_is_named_shortly_when_it_is_not_served() -> None:
    """404, as OpenAI answers; the name is the client's, so it is cut."""
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
def test_sdk_raises_with_our_words_when_it_gets_the_envelope(status: int, kind: type[openai.APIStatusError]) -> None:
    """Message, code, param and type all arrive."""
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
