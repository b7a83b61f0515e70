"""Who a request is from, as far as that can be told: streams and keys are the caller's own."""

from __future__ import annotations

import hashlib

from starlette.types import Scope

from sluiceway.api.http.body import header_of

_CREDENTIALS = (b"authorization", b"x-api-key")


def caller_of(scope: Scope) -> str:
    """A word for who sent these credentials, which are not kept; all that send none are one caller.

    The header is part of it: the same value in the other header is another caller's.
    """
    digest = hashlib.sha256()
    is_anybody = True
    for name in _CREDENTIALS:
        value = _alike(name, header_of(scope, name))
        if value is not None:
            is_anybody = False
            digest.update(name + b"\0" + hashlib.sha256(value).digest())
    return "" if is_anybody else digest.hexdigest()


def _alike(name: bytes, value: bytes | None) -> bytes | None:
    """The case of a scheme means nothing, nor do further blanks after it.

    https://www.rfc-editor.org/rfc/rfc9110#section-11.4
    """
    if value is None or name != b"authorization":
        return value
    scheme, blank, rest = value.partition(b" ")
    return scheme.lower() + blank + rest.lstrip(b" ") if blank else value
