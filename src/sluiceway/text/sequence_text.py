"""The text of one sequence as its tokens come: decoded, and cut where a stop string begins; pure."""

from __future__ import annotations

from sluiceway.text.detokenizer import Detokenizer
from sluiceway.text.stops import StopMatcher
from sluiceway.types import TokenId


class SequenceText:
    """Tokens in; out comes text that is certain, and the ids since the last `take`.

    `min_tokens`: a stop string counts only in what comes from that many tokens on.
    """

    __slots__ = ("_detokenizer", "_min_tokens", "_pieces", "_stops", "_token_ids", "n_tokens", "stop_match")

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._pieces: list[str] = []
        self._token_ids: list[TokenId] = []
        self.n_tokens = 0
        self.stop_match: str | None = None
        """The stop string that ended the text. Tokens after it are not pushed any more."""

    @property
    def is_over(self) -> bool:
        """Whether a stop string has ended it."""
        return self.stop_match is not None

    def push(self, token_id: TokenId, *, is_text: bool = True) -> bool:
        """The next token; whether a stop string ends the text with it. A token may be counted and be no text."""
        self.n_tokens += 1
        self._token_ids.append(token_id)
        if not is_text:
            return False
        text = self._detokenizer.push(token_id)
        if self.n_tokens < self._min_tokens:
            self._pieces.append(text)
        else:
            self._search(text)
        return self.is_over

    def end(self) -> None:
        """No token follows: half a character or the beginning of a stop string, if held back, is text now."""
        if not self.is_over:
            self._search(self._detokenizer.flush())
        if not self.is_over:
            rest, self.stop_match = self._stops.flush()
            self._pieces.append(rest)

    def take(self) -> tuple[str, tuple[TokenId, ...]]:
        """What has come since the last time."""
        text, token_ids = "".join(self._pieces), tuple(self._token_ids)
        self._pieces.clear()
        self._token_ids.clear()
        return text, token_ids

    def _search(self, text: str) -> None:
        certain, self.stop_match = self._stops.push(text)
        self._pieces.append(certain)
