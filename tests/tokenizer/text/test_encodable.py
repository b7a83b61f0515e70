"""Text that can be encoded, and text that cannot."""

from __future__ import annotations

import pytest

from sluiceway.errors import RequestError
from sluiceway.tokenizer.text.encodable import require_unicode


def test_require_unicode_gives_utf_8_for_any_real_text() -> None:
    """Noncharacters and NUL are Unicode too."""
    assert require_unicode("a\0\ufeff\uffff😀") == b"a\0\xef\xbb\xbf\xef\xbf\xbf\xf0\x9f\x98\x80"


def test_require_unicode_refuses_and_says_where_when_a_surrogate_stands_alone() -> None:
    """A 400 that a client can act on, not an exception's text."""
    with pytest.raises(RequestError) as caught:
        require_unicode("ab\ud800c")
    assert caught.value.refusal.status == 400
    assert caught.value.refusal.message == "The text has a lone surrogate at character 2, which is no text."
