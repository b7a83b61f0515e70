"""What can go wrong, as one tree, and `Refusal`, the form in which a fault reaches a client.

::

    SluicewayError
    ├── ConfigError         a flag or an environment variable is wrong; names the field
    ├── ModelSourceError    a model cannot be found, fetched, verified or read
    │   ├── ModelNotHere    it can be pulled (`store.models`)
    │   └── ModelConfigError    its files ask for what is not served, or contradict themselves; a ConfigError too
    ├── RequestError        a client's request cannot be served; carries a Refusal
    ├── ModelFault          the model gave no usable number where a token was to be chosen
    ├── PeerGone            the process at the other end of a pipe is not there
    ├── WorkerError         a job was not done by a worker process (`runtime.worker`)
    │   ├── WorkerBusy          too many wait already
    │   ├── WorkerTimeout       it was not done in its time
    │   ├── WorkerMemoryError   it needed more memory than it may have
    │   ├── WorkerResultError   its result is larger than it may be
    │   ├── WorkerDied          the process died, or could not be started
    │   └── WorkerFault         it raised an exception: our own bug
    ├── TooManyTokens       a text has more tokens than its caller can use (`tokenizer.text.tokenizer`)
    ├── SSEError            an event stream breaks a bound, or cannot be written (`sse.event`)
    ├── AnswerError         another server did not answer `chat --url` (`cli.answers`)
    └── InvariantError      our own bug: a second release, a state that cannot be; never caused by input
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Refusal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request is not served, or why a stream broke: the same facts in every protocol.

    `status` is the HTTP status where headers can still be sent. `code` is a stable snake_case word, `param` the JSON
    path of the field at fault (`messages[0].content`). `message` is for a person and holds no path or traceback.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class SluicewayError(Exception):
    """The root: everything that this package raises on purpose."""

    exit_code: ClassVar[int] = 1
    """How a command ends that cannot go on because of it; `cli.exits` lists the codes."""


class ConfigError(SluicewayError):
    """A setting is wrong; the message names the field and says what would be right."""

    exit_code = 2

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModelSourceError(SluicewayError):
    """A model cannot be found, fetched, verified or read."""

    exit_code = 3


class ModelConfigError(ConfigError, ModelSourceError):
    """A model's files ask for what is not served, or contradict themselves; the message names the key."""

    exit_code = 3  # no flag is wrong


class RequestError(SluicewayError):
    """A request is refused; `refusal` says how to answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class ModelFault(SluicewayError):
    """The model gave no usable number where a token was to be chosen: its weights or their precision are broken."""


class PeerGone(SluicewayError):
    """No process is connected at the other end of a pipe."""


class InvariantError(SluicewayError):
    """One of our own rules is broken. A bug, never the fault of a client."""


def invalid(message: str, param: str | None = None, *, code: str = "invalid_value") -> RequestError:
    """The `RequestError` for bad input: 400."""
    return RequestError(Refusal(status=400, code=code, message=message, param=param))
