"""Text that can be encoded, and text that cannot."""

from __future__ import annotations

import pytest

from sluiceway.errors import RequestError
from sluiceway.tokenizer.text.encodable import require_unicode


def test_require_unicode_gives_utf_8_for_any_real_text() -> None:
    """Also for noncharacters and NUL."""
    assert require_unicode("a\0\ufeff\uffff😀") == b"a\0\xef\xbb\xbf\xef\xbf\xbf\xf0\x9f\x98\x80"


def test_require_unicode_refuses_a_lone_surrogate_and_says_where_it_is() -> None:
    """The error is a 400."""
    with pytest.raises(RequestError) as caught:
        require_unicode("ab\ud800c")
    assert caught.value.refusal.status == 400
    assert caught.value.refusal.message == "The text has a lone surrogate at character 2, which cannot be encoded."
