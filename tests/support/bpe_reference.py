"""Slow, simple tokenizers for comparison with the real ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import regex  # type: ignore[import-untyped]

_GPT_2_WORDS = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_SCRAPS = [
    *"aeiou tnsr.,;:!?'\"()[]{}<>/\\|@#$%^&*-_=+~`",
    *["Hello", " world", " the", "ing", "it's", "we'll", "I'M", "don't", "Ünïcödé", " naïve"],
    *["def f(x):\n    return x\n", "for (int i = 0; i < n; i++) {", "SELECT * FROM t;", "\t\tif x:\r\n", "</div>"],
    *["12", "3.14159", "2026-11-29", "٣٤", "½", "Ⅷ", "0x7f", "1,000,000"],
    *["漢字", "かな", "한국어", "Привет", "مرحبا", "हिन्दी", "ไทย", "😀", "👨‍👩‍👧", "🇪🇺", "e\u0301"],
    *["  ", "    ", "\n", "\n\n\n", "\t", "\u00a0", "\u3000", "\u200b", "\ufeff", "\x00", "\x04", "\ufffd"],
    *["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "</s>", "<s>"],
]


def random_texts(n: int, *, seed: int) -> Iterator[str]:
    """Yield random mixtures of code, prose, scripts, emoji, digits, spaces and special tokens."""
    rng = random.Random(seed)
    for _ in range(n):
        yield "".join(rng.choices(_SCRAPS, k=rng.randrange(1, 14)))


class GptTwoReference:
    """Splits digits and GPT-2's words into bytes, then merges pairs by rank, leftmost first.

    A byte that is not in the vocabulary is dropped.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(pair.split(" ")): i for i, pair in enumerate(metadata["tokenizer.ggml.merges"])}
        control = [t for t, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True) if kind == 3]
        self._specials = regex.compile("(" + "|".join(map(regex.escape, sorted(control, key=len, reverse=True))) + ")")
        self._alphabet = _gpt_2_alphabet()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self._specials.split(text)):
            ids += [self._ids[part]] if i % 2 else self._encode_plain(part)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        chunks = [chunk for chunk in regex.split(r"(\p{N})", text) if chunk]
        words = [word for chunk in chunks for word in _GPT_2_WORDS.findall(chunk)]
        return [token_id for word in words for token_id in self._merge(word)]

    def _merge(self, word: str) -> list[int]:
        symbols = [self._alphabet[byte] for byte in word.encode()]
        symbols = [symbol for symbol in symbols if symbol in self._ids]
        while True:
            ranked = [
                (self._ranks.get(pair, 1 << 30), i) for i, pair in enumerate(zip(symbols, symbols[1:], strict=False))
            ]
            rank, i = min(ranked, default=(1 << 30, 0))
            if rank == 1 << 30:
                return [self._ids[symbol] for symbol in symbols]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


class SentencePieceReference:
    """Turns spaces into marks, adds one in front, and merges the pair with the best score, leftmost first."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._scores = {
            token: score
            for token, score, kind in zip(tokens, metadata["tokenizer.ggml.scores"], kinds, strict=True)
            if kind == 1
        }

    def encode(self, text: str) -> list[int]:
        symbols = list("▁" + text.replace(" ", "▁"))
        while True:
            joined = [(left + right, i) for i, (left, right) in enumerate(zip(symbols, symbols[1:], strict=False))]
            scored = [(-self._scores[token], i) for token, i in joined if token in self._scores]
            if not scored:
                break
            i = min(scored)[1]
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        return [token_id for symbol in symbols for token_id in self._ids_of(symbol)]

    def _ids_of(self, symbol: str) -> list[int]:
        if symbol in self._ids:
            return [self._ids[symbol]]
        return [self._ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]


def _gpt_2_alphabet() -> dict[int, str]:
    """Map bytes as the published `bytes_to_unicode`: printable ones to themselves, others to 256 and up."""
    alphabet: dict[int, str] = {}
    n_others = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            alphabet[byte] = chr(byte)
        else:
            alphabet[byte] = chr(256 + n_others)
            n_others += 1
    return alphabet
