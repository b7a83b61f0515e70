"""The refusals that are the same for every request: said by several layers, in one wording."""

from __future__ import annotations

from sluiceway.errors import Refusal

RETRY_AFTER_S = 1.0
"""About the time of a short answer, and of the start of a process that died."""

INTERNAL_ERROR = Refusal(
    status=500, code="internal_error", message="The server failed while it worked on this request."
)
NO_LOGITS = Refusal(
    status=500,
    code="model_fault",
    message="The model gave no usable number for the next token. Its weights or their precision may be broken.",
)

# The server as a whole cannot take a request, or go on with it.
LOADING = Refusal(status=503, code="model_loading", message="The model is being loaded.", retry_after_s=RETRY_AFTER_S)
OVERLOADED = Refusal(
    status=503,
    code="overloaded",
    message="Too many requests are waiting; try again later.",
    retry_after_s=RETRY_AFTER_S,
)
OUT_OF_MEMORY = Refusal(
    status=503,
    code="overloaded",
    message="The server has no memory left for answers that are not streamed; try again later, or set `stream`.",
    retry_after_s=RETRY_AFTER_S,
)
API_UNAVAILABLE = Refusal(
    status=503,
    code="api_unavailable",
    message="The API process is down or does not respond; try again in a moment.",
    retry_after_s=RETRY_AFTER_S,
)
MESSAGE_LOST = Refusal(
    status=503,
    code="request_lost",
    message="A message about this request was lost between processes of the server; send it again.",
    retry_after_s=RETRY_AFTER_S,
)
DRAINING = Refusal(
    status=503,
    code="draining",
    message="The server is shutting down; send the request again.",
    retry_after_s=RETRY_AFTER_S,
)


def answer_too_large(max_bytes: int, param: str | None = None) -> Refusal:
    """400: a whole answer that is, or would be, larger than the server gathers."""
    message = (
        f"An answer that is not streamed may have at most {max_bytes} bytes on this server; this one has more."
        " Set `stream`, or ask for fewer tokens, choices or logprobs."
    )
    return Refusal(status=400, code="answer_too_large", message=message, param=param)


def unavailable(process: str, what: str = "is down") -> Refusal:
    """503 for a new request while that process of the server cannot serve; one code for all of them."""
    return Refusal(
        status=503,
        code="engine_unavailable",
        message=f"The {process} {what}; try again in a moment.",
        retry_after_s=RETRY_AFTER_S,
    )


def lost(process: str) -> Refusal:
    """503 for a request that ended because that process of the server died; one code for all of them."""
    return Refusal(
        status=503,
        code="engine_lost",
        message=f"The {process} stopped while it worked on this request.",
        retry_after_s=RETRY_AFTER_S,
    )


def prompt_too_long(n_prompt: str, max_tokens: int, why: str = "") -> Refusal:
    """400 for a prompt of `n_tokens` tokens, where prompt and answer together may have `max_tokens`.

    SDKs recognise the message by its words, and only those with an answer of OpenAI's or vLLM's form also by the code:
    LiteLLM by "this model's maximum context length is", LangChain by "prompt is too long".
    """
    message = (
        f"This model's maximum context length is {max_tokens} tokens on this server{why}. "
        f"The prompt is too long: it has {n_prompt} tokens, and at least one token must be left for the answer."
    )
    return Refusal(status=400, code="context_length_exceeded", message=message)
