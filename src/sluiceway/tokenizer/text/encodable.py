"""What text can be encoded at all."""

from __future__ import annotations

from sluiceway.errors import invalid


def require_unicode(text: str) -> bytes:
    """The text as UTF-8; `RequestError` where it holds half of a surrogate pair: JSON can spell that, UTF-8 cannot."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"The text has a lone surrogate at character {error.start}, which is no text.") from None
