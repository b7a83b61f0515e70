"""`Endpoint`: everything that the server must know about one path that generates text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluiceway.errors import Refusal, RequestError
from sluiceway.protocols.common.errors import error_body, model_not_found
from sluiceway.protocols.common.generation import Framer, GenerationRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Reads requests to one path and writes the responses to them.

    To add an endpoint, define one in a file of its own, and add it to `protocols.endpoints.ENDPOINTS`.
    """

    path: str
    id_prefix: str
    """The ids of responses begin with it, unless the client chooses the id."""
    parser: Callable[[bytes, str], GenerationRequest]
    """Turns a body into a request. Its second argument is the name of the served model. Raises `RequestError`."""
    framer: Callable[[GenerationRequest, str, int], Framer]
    """Makes the framer of one response from the request, the response's id and the time in seconds since 1970."""
    error_body: Callable[[Refusal], bytes] = error_body
    """The body of every error on this path, whichever part of the server refuses the request."""

    def read(self, body: bytes, served_name: str) -> GenerationRequest:
        """Parse a body and check that it names the served model. Raises `RequestError`."""
        request = self.parser(body, served_name)
        if request.model != served_name:
            raise RequestError(model_not_found(request.model, served_name))
        return request
