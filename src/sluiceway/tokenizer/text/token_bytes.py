"""Finds the bytes that each token of a vocabulary means, from the vocabulary and its decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tokenizers

from sluiceway.errors import ModelConfigError
from sluiceway.tokenizer.text.detokenizer import TokenBytes
from sluiceway.types import TokenId

SPACE_MARK = "\u2581"
"""Means a space in SentencePiece vocabularies."""

MAX_VOCAB_SIZE = 1 << 23
"""The table has an entry for each id, used or not. Published vocabularies have a million ids at most."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_BytesOf = Callable[[str], bytes]


def token_bytes_of(tokenizer: tokenizers.Tokenizer) -> TokenBytes:
    """Make the table for a byte-level or a SentencePiece decoder. Raises `ModelConfigError` for any other kind."""
    steps = list(steps_of(component_state(tokenizer.decoder)))
    names = [step["type"] for step in steps]
    specials = {token_id: added.content for token_id, added in _added(tokenizer).items() if added.special}
    if names == ["ByteLevel"]:
        return TokenBytes(_table(tokenizer, _byte_level(), specials), specials=specials)
    if _is_sentencepiece(steps):
        bytes_of = _sentencepiece(has_byte_tokens="ByteFallback" in names)
        drops_first_space = any(map(_drops_first_space, steps))
        return TokenBytes(_table(tokenizer, bytes_of, specials), drops_first_space, specials)
    raise ModelConfigError(
        "tokenizer.decoder", f"must be byte-level or SentencePiece, not {' + '.join(names) or 'missing'}"
    )


def _added(tokenizer: tokenizers.Tokenizer) -> Mapping[TokenId, tokenizers.AddedToken]:
    added: Mapping[TokenId, tokenizers.AddedToken] = tokenizer.get_added_tokens_decoder()
    return added


def _table(tokenizer: tokenizers.Tokenizer, bytes_of: _BytesOf, specials: Iterable[TokenId]) -> list[bytes]:
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    n_ids = max(vocab.values(), default=-1) + 1
    if n_ids > MAX_VOCAB_SIZE:
        raise ModelConfigError(
            "tokenizer.vocab", f"has the token id {n_ids - 1}; ids up to {MAX_VOCAB_SIZE - 1} are served"
        )
    table = [b""] * n_ids
    for token, token_id in vocab.items():
        table[token_id] = bytes_of(token)
    for token_id in specials:
        table[token_id] = b""
    return table


def _byte_level() -> _BytesOf:
    """Decode tokens whose characters each mean one byte. A token with other characters is an added one: plain text."""
    byte_of_char = {ord(char): byte for byte, char in byte_level_alphabet().items()}
    # Characters below U+0100 that mean no byte are mapped above it, so that encoding to Latin-1 fails for them.
    to_bytes = dict.fromkeys(range(256), 0x100) | byte_of_char

    def bytes_of(token: str) -> bytes:
        try:
            return token.translate(to_bytes).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return bytes_of


def byte_level_alphabet() -> Mapping[int, str]:
    """Map bytes to characters as GPT-2 does: printable bytes to themselves, the others to U+0100 and upwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}


def _sentencepiece(*, has_byte_tokens: bool) -> _BytesOf:
    def bytes_of(token: str) -> bytes:
        byte = _BYTE_TOKEN.fullmatch(token) if has_byte_tokens else None
        return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE_MARK, " ").encode()

    return bytes_of


def component_state(component: Any) -> Mapping[str, Any] | None:
    """Describe a decoder, normaliser or pre-tokenizer as `tokenizer.json` does; None if there is none."""
    # The library pickles this description. That of the whole tokenizer would contain the vocabulary.
    state: Mapping[str, Any] | None = None if component is None else json.loads(component.__getstate__())
    return state


def steps_of(state: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a component in order, also those of nested sequences."""
    if state is None:
        return
    if state["type"] != "Sequence":
        yield state
        return
    for key in ("decoders", "normalizers", "pretokenizers"):
        for step in state.get(key, ()):
            yield from steps_of(step)


def _is_sentencepiece(steps: list[Mapping[str, Any]]) -> bool:
    return any(map(_restores_spaces, steps)) and all(
        _restores_spaces(step) or _drops_first_space(step) or step["type"] in ("ByteFallback", "Fuse") for step in steps
    )


def _restores_spaces(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step["replacement"] == SPACE_MARK)
    return (step["type"], step.get("pattern"), step.get("content")) == ("Replace", {"String": SPACE_MARK}, " ")


def _drops_first_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return step["type"] == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0)
