"""Why the API process itself takes no request, or ends those that it has."""

from __future__ import annotations

from sluiceway.errors import Refusal

LOADING = Refusal(status=503, code="model_loading", message="The model is being loaded.", retry_after_s=1.0)
ENGINE_UNAVAILABLE = Refusal(
    status=503,
    code="engine_unavailable",
    message="The engine is not running; try again in a moment.",
    retry_after_s=1.0,
)
ENGINE_LOST = Refusal(
    status=503, code="engine_lost", message="The engine stopped while it worked on this request.", retry_after_s=1.0
)
DRAINING = Refusal(
    status=503,
    code="draining",
    message="The server is shutting down; send the request again.",
    retry_after_s=1.0,
)
OVERLOADED = Refusal(
    status=503, code="overloaded", message="Too many requests are waiting; try again later.", retry_after_s=1.0
)
