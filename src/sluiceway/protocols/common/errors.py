"""Errors in OpenAI's envelope, the only shape of which its SDKs show message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sluiceway.errors import Refusal
from sluiceway.protocols.common.body import shorten
from sluiceway.sse.encoder import encode_json

_TYPES: Mapping[int, str] = MappingProxyType(
    {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
)

# What the router and the server itself refuse; all else comes as a `Refusal` already.
_OF_STATUS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        400: ("bad_request", "The request cannot be understood."),
        404: ("not_found", "There is nothing at this path."),
        405: ("method_not_allowed", "This path does not have this method."),
        408: ("request_timeout", "The request did not arrive in time."),
        413: ("body_too_large", "The body of the request is too large."),
        415: ("unsupported_media_type", "The body must be JSON, sent with `Content-Type: application/json`."),
        421: ("wrong_host", "This server does not answer to the host that the request names."),
        431: ("headers_too_large", "The headers of the request are too large."),
        501: ("unsupported_transfer_coding", "This server takes no `Transfer-Encoding` but `chunked`."),
        505: ("unsupported_http_version", "This server speaks HTTP/1.1 and HTTP/1.0."),
    }
)


def error_type(status: int) -> str:
    """The `type` that goes with a status: SDKs and users tell classes of errors apart by it."""
    return _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def error_body(refusal: Refusal) -> bytes:
    """`{"error": {...}}` with all four keys, for an answer and for the error event of a stream."""
    return encode_json({"error": error_fields(refusal)})


def error_fields(refusal: Refusal) -> dict[str, str | None]:
    """The fields of the envelope."""
    return {
        "message": refusal.message,
        "type": error_type(refusal.status),
        "param": refusal.param,
        "code": refusal.code,
    }


def refusal_for_status(status: int, message: str | None = None) -> Refusal:
    """The refusal for an error of the router or the server itself, which knows a status and perhaps a sentence."""
    code, usual = _OF_STATUS.get(status, (f"http_{status}", f"The request failed with HTTP status {status}."))
    return Refusal(status=status, code=code, message=message or usual)


def model_not_found(model: str, served: str) -> Refusal:
    """404 for a model that is not served here; names the one that is."""
    message = f"The model {shorten(model)} does not exist here; this server serves {shorten(served)}."
    return Refusal(status=404, code="model_not_found", message=message, param="model")
