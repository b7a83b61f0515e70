"""The text of one sequence as its tokens come: decoded, and cut where a stop string begins; pure."""

from __future__ import annotations

from sluiceway.tokenizer.text.detokenizer import Detokenizer
from sluiceway.tokenizer.text.stops import StopMatcher
from sluiceway.types import LikelyToken, Logprobs, TokenId, ToldToken


class SequenceText:
    """Tokens in; out comes text that is certain, and since the last `take` the ids, and the tokens that are to be told.

    `min_tokens`: a stop string counts only in what comes from that many tokens on.
    """

    __slots__ = (
        "_detokenizer",
        "_min_tokens",
        "_n_decoded",
        "_pieces",
        "_stops",
        "_token_ids",
        "_told",
        "n_tokens",
        "stop_match",
    )

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, min_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._min_tokens = min_tokens
        self._pieces: list[str] = []
        self._token_ids: list[TokenId] = []
        self._told: list[ToldToken] = []
        self._n_decoded = 0
        """Characters of the tokens that are told, certain or not."""
        self.n_tokens = 0
        self.stop_match: str | None = None
        """The stop string that ended the text. Tokens after it are not pushed any more."""

    @property
    def is_over(self) -> bool:
        """Whether a stop string has ended it."""
        return self.stop_match is not None

    def push(self, token_id: TokenId, logprobs: Logprobs | None = None, *, is_text: bool = True) -> bool:
        """The next token; whether a stop string ends the text with it. A token may be counted and be no text.

        Either all tokens of a sequence come with log-probabilities, or none.
        """
        self.n_tokens += 1
        self._token_ids.append(token_id)
        if logprobs is None:
            text = self._detokenizer.push(token_id) if is_text else ""
        else:
            text = self._push_told(token_id, logprobs, is_text)
        if not is_text:
            return False
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

    def take(self) -> tuple[str, tuple[TokenId, ...], tuple[ToldToken, ...]]:
        """What has come since the last time."""
        text, token_ids = "".join(self._pieces), tuple(self._token_ids)
        self._pieces.clear()
        self._token_ids.clear()
        if not self._told:
            return text, token_ids, ()
        told, self._told = tuple(self._told), []
        return text, token_ids, told

    def _push_told(self, token_id: TokenId, logprobs: Logprobs, is_text: bool) -> str:
        """The characters that the token completes, as the detokenizer gives them."""
        token = self._likely(token_id, logprobs.logprob)
        top = tuple(map(self._likely, logprobs.top_ids, logprobs.top_logprobs))
        start, end, text = self._n_decoded, None, ""
        if is_text:
            text = self._detokenizer.push(token_id)
            self._n_decoded += len(text)
            end = self._n_decoded + self._detokenizer.is_inside_character
        self._told.append(ToldToken(token, top, start, end))
        return text

    def _likely(self, token_id: TokenId, logprob: float) -> LikelyToken:
        """A token that may come next."""
        shown = self._detokenizer.token_bytes.shown(token_id)
        return LikelyToken(token_id, shown, self._detokenizer.data(token_id), logprob)

    def _search(self, text: str) -> None:
        certain, self.stop_match = self._stops.push(text)
        self._pieces.append(certain)
