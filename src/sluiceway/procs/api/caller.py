"""Who a request is from, as far as that can be told: streams and keys are the caller's own."""

from __future__ import annotations

import hashlib

from starlette.types import Scope

from sluiceway.procs.api.body import header_of

_CREDENTIALS = (b"authorization", b"x-api-key")


def caller_of(scope: Scope) -> str:
    """A word for who sent these credentials, which are not kept; all that send none are one caller."""
    sent = [value for name in _CREDENTIALS if (value := header_of(scope, name)) is not None]
    return hashlib.sha256(b"\0".join(sent)).hexdigest() if sent else ""
