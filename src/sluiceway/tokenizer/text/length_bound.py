"""Computes the `LengthBound` of a tokenizer from its vocabulary and from its normaliser and pre-tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import models

from sluiceway.lengths import LengthBound
from sluiceway.tokenizer.text.token_bytes import byte_level_alphabet, component_state, steps_of

_SHRINKS = {"Prepend": 1, "Replace": 1, "NFC": 3, "NFD": 3, "NFKC": 4, "NFKD": 4}
"""By which factor a normaliser can shorten a text in UTF-8. NFC turns three Hangul letters (nine bytes) into one
syllable (three bytes); NFKC turns a mathematical letter (four bytes) into a plain one (one byte)."""

_LOSSLESS_SPLITS = ("ByteLevel", "Metaspace", "Split", "Digits", "Punctuation")


def length_bound_of(tokenizer: tokenizers.Tokenizer, token_bytes: Sequence[bytes]) -> LengthBound:
    """Compute the bound. This is done once for a vocabulary."""
    longest = max(1, *_lengths(tokenizer, token_bytes))
    lost, shrinks = _lost_bytes(tokenizer), _shrinks(tokenizer)
    if lost is None or shrinks is None:
        return LengthBound(max_token_bytes=longest)
    return LengthBound(max_token_bytes=longest, bytes_a_token=longest * shrinks, lost_bytes=lost)


def _lengths(tokenizer: tokenizers.Tokenizer, token_bytes: Sequence[bytes]) -> Iterator[int]:
    yield from map(len, token_bytes)
    yield from (len(added.content.encode()) for added in tokenizer.get_added_tokens_decoder().values())
    if not _is_byte_level(tokenizer):
        # A text may contain the three-byte space mark itself, which is one space in `token_bytes`.
        yield from (len(token.encode()) for token in tokenizer.get_vocab(with_added_tokens=False))


def _shrinks(tokenizer: tokenizers.Tokenizer) -> int | None:
    """By which factor the steps before merging can shorten a text; None if that is not known."""
    if any(added.lstrip or added.rstrip for added in tokenizer.get_added_tokens_decoder().values()):
        return None  # such a token takes the spaces around it
    if not all(map(_keeps_all_text, steps_of(component_state(tokenizer.pre_tokenizer)))):
        return None
    product = 1
    for step in steps_of(component_state(tokenizer.normalizer)):
        if step["type"] not in _SHRINKS or (step["type"] == "Replace" and step["pattern"] != {"String": " "}):
            return None
        product *= _SHRINKS[step["type"]]
    return product


def _keeps_all_text(split: Mapping[str, Any]) -> bool:
    return split["type"] in _LOSSLESS_SPLITS and split.get("behavior") != "Removed"


def _lost_bytes(tokenizer: tokenizers.Tokenizer) -> bytes | None:
    """Return the bytes that become no token; None if a text of any length may become a single unknown token.

    A byte-level vocabulary may lack bytes. They are left out, as the model's own encoder does.
    """
    model = tokenizer.model
    if not isinstance(model, models.BPE):
        return None
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in range(256)):
        return b""
    if _is_byte_level(tokenizer) and model.unk_token is None:
        return bytes(byte for byte, char in byte_level_alphabet().items() if char not in vocab)
    return None


def _is_byte_level(tokenizer: tokenizers.Tokenizer) -> bool:
    return any(step["type"] == "ByteLevel" for step in steps_of(component_state(tokenizer.decoder)))
