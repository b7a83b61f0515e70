"""The text of one sequence while its tokens arrive: decoded, and cut where a stop string begins; pure."""

from __future__ import annotations

from sluiceway.tokenizer.text.detokenizer import Detokenizer
from sluiceway.tokenizer.text.stops import StopMatcher
from sluiceway.types import LikelyToken, Logprobs, TokenId, TokenLogprobs


class SequenceText:
    """Takes tokens, and gives the text that can no longer change, with the ids and logprobs since the last `take`.

    A stop string counts only in text that comes from the token with the number `min_tokens` on.
    """

    __slots__ = (
        "_detokenizer",
        "_min_tokens",
        "_n_decoded",
        "_pieces",
        "_stops",
        "_token_ids",
        "_logprobs",
        "n_tokens",
        "stop_match",
    )

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._pieces: list[str] = []
        self._token_ids: list[TokenId] = []
        self._logprobs: list[TokenLogprobs] = []
        self._n_decoded = 0
        """The number of decoded characters, held back or not. Counted only if tokens have logprobs."""
        self.n_tokens = 0
        self.stop_match: str | None = None
        """The stop string that ended the text; None before that. No token is pushed after it."""

    @property
    def is_over(self) -> bool:
        """True if a stop string has ended the text."""
        return self.stop_match is not None

    def push(self, token_id: TokenId, logprobs: Logprobs | None = None, *, is_text: bool = True) -> bool:
        """Add the next token. Returns True if a stop string ends the text with it.

        With `is_text` False the token is counted, but adds no text. Either all tokens of a sequence have logprobs, or
        none has.
        """
        self.n_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is None:
            text = self._detokenizer.push(token_id) if is_text else ""
        else:
            text = self._push_with_logprobs(token_id, logprobs, is_text)
        if not is_text:
            return False
        if self.n_tokens < self._min_tokens:
            self._pieces.append(text)
        else:
            self._search(text)
        return self.is_over

    def end(self) -> None:
        """Add no more tokens. Half a character or the beginning of a stop string that was held back is text now."""
        if not self.is_over:
            self._search(self._detokenizer.flush())
        if not self.is_over:
            rest, self.stop_match = self._stops.flush()
            self._pieces.append(rest)

    def take(self) -> tuple[str, tuple[TokenId, ...], tuple[TokenLogprobs, ...]]:
        """Return the text, the ids and the logprobs since the last call."""
        text, token_ids = "".join(self._pieces), tuple(self._token_ids)
        self._pieces.clear()
        self._token_ids.clear()
        if not self._logprobs:
            return text, token_ids, ()
        logprobs_of_tokens, self._logprobs = tuple(self._logprobs), []
        return text, token_ids, logprobs_of_tokens

    def _push_with_logprobs(self, token_id: TokenId, logprobs: Logprobs, is_text: bool) -> str:
        """Add a token that has logprobs. Returns the characters that it completes."""
        token = self._likely(token_id, logprobs.logprob)
        top = tuple(map(self._likely, logprobs.top_ids, logprobs.top_logprobs))
        start, end, text = self._n_decoded, None, ""
        if is_text:
            text = self._detokenizer.push(token_id)
            self._n_decoded += len(text)
            end = self._n_decoded + self._detokenizer.is_inside_character
        self._logprobs.append(TokenLogprobs(token, top, start, end))
        return text

    def _likely(self, token_id: TokenId, logprob: float) -> LikelyToken:
        """Describe a token that was likely here."""
        shown = self._detokenizer.token_bytes.shown(token_id)
        return LikelyToken(token_id, shown, self._detokenizer.data(token_id), logprob)

    def _search(self, text: str) -> None:
        certain, self.stop_match = self._stops.push(text)
        self._pieces.append(certain)
