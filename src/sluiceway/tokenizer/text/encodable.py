"""The check that a text can be encoded."""

from __future__ import annotations

from sluiceway.errors import invalid


def require_unicode(text: str) -> bytes:
    """Encode as UTF-8. Raises `RequestError` for half of a surrogate pair, which JSON can contain but UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"The text has a lone surrogate at character {error.start}, which cannot be encoded.") from None
