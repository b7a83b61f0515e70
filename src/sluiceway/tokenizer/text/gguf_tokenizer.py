"""Rebuilds the tokenizer of a GGUF file from its metadata.

Two kinds of vocabulary are supported: `gpt2`, byte-level with a list of merges, and `llama`, SentencePiece, whose
merges follow from the scores of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from sluiceway.errors import ModelConfigError, ModelSourceError
from sluiceway.tokenizer.text.gguf_metadata import read_metadata
from sluiceway.tokenizer.text.pre_tokenizers import splitting_named
from sluiceway.tokenizer.text.subword_tokenizer import SubwordTokenizer, library_errors
from sluiceway.tokenizer.text.token_bytes import SPACE_MARK
from sluiceway.tokenizer.text.tokenizer import TemplateSource
from sluiceway.types import TokenId

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_DAMAGED = "the GGUF file's tokenizer is damaged"

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endofturn|>")
"""Control tokens that end a turn of a chat. Many files name only the token that ends a document."""


def load_gguf_tokenizer(path: str) -> SubwordTokenizer:
    """Load the tokenizer. Raises `ModelSourceError` for a damaged file, `ModelConfigError` for an unsupported one."""
    return tokenizer_of(read_metadata(path))


def load_gguf_eos_token_ids(path: str) -> tuple[TokenId, ...]:
    """Read the end tokens only, which is much faster than `load_gguf_tokenizer`, since it ignores the merges."""
    metadata = read_metadata(path)
    with library_errors(_DAMAGED):
        return tuple(_Vocabulary(metadata).eos_token_ids())


def tokenizer_of(metadata: Mapping[str, Any]) -> SubwordTokenizer:
    """Build the tokenizer from the metadata, with all its arrays. Raises the errors of `load_gguf_tokenizer`."""
    source = metadata.get("tokenizer.chat_template")
    if not (source is None or isinstance(source, str)):
        raise ModelConfigError("tokenizer.chat_template", "must be a text")
    with library_errors(_DAMAGED):  # its lists may hold anything
        vocabulary = _Vocabulary(metadata)
        return SubwordTokenizer(
            vocabulary.build(),
            eos_token_ids=vocabulary.eos_token_ids(),
            chat_format=None if source is None else TemplateSource(source, vocabulary.template_variables()),
        )


class _Vocabulary:
    """Holds the lists of the metadata, checked against each other, and builds a tokenizer from them."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._tokens: Sequence[str] = self._list("tokens")
        self._types: Sequence[int] = self._list("token_type", default=[_NORMAL] * len(self._tokens))
        # An id without a token has an empty entry. There may be several.
        self._ids = {token: token_id for token_id, token in enumerate(self._tokens) if token}
        self._require_same_length("token_type", self._types)
        if len(self._ids) != sum(map(bool, self._tokens)):
            raise ModelSourceError("tokenizer.ggml.tokens: the same token occurs twice")

    def build(self) -> tokenizers.Tokenizer:
        match self._get("model"):
            case "gpt2":
                tokenizer, adds_bos = self._byte_level()
            case "llama":
                tokenizer, adds_bos = self._sentencepiece(), True
            case other:
                raise ModelConfigError("tokenizer.ggml.model", f"{other!r} is not supported; 'gpt2' and 'llama' are")
        self._add_tokens(tokenizer)
        self._add_bos_and_eos(tokenizer, adds_bos)
        return tokenizer

    def eos_token_ids(self) -> list[TokenId]:
        named = [self._special_id(name) for name in ("eos", "eot", "eom")]
        spelled = [self._ids[token] for token in _TURN_ENDS if self._is_control(token)]
        return list(dict.fromkeys([token_id for token_id in named if token_id is not None] + spelled))

    def template_variables(self) -> dict[str, str]:
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {variable: self._special_id(name) for variable, name in names.items()}
        return {variable: self._tokens[token_id] for variable, token_id in ids.items() if token_id is not None}

    # The two kinds.

    def _byte_level(self) -> tuple[tokenizers.Tokenizer, bool]:
        splitting = splitting_named(self._get("pre"))
        merges = [_pair(merge) for merge in self._list("merges")]
        tokenizer = tokenizers.Tokenizer(models.BPE(self._ids, merges, ignore_merges=splitting.whole_words))
        if (normalizer := splitting.normalizer()) is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = splitting.pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer, splitting.adds_bos

    def _sentencepiece(self) -> tokenizers.Tokenizer:
        scores: Sequence[float] = self._list("scores")
        self._require_same_length("scores", scores)
        unknown = self._special_id("unknown")
        model = models.BPE(
            self._ids,
            list(self._merges_by_score(scores)),
            unk_token=None if unknown is None else self._tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        tokenizer = tokenizers.Tokenizer(model)
        spaces = normalizers.Replace(" ", SPACE_MARK)
        restore = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self._get("add_space_prefix", True):
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces])
            tokenizer.decoder = decoders.Sequence([*restore, decoders.Strip(" ", 1, 0)])
        else:
            tokenizer.normalizer = spaces
            tokenizer.decoder = decoders.Sequence(restore)
        return tokenizer

    def _merges_by_score(self, scores: Sequence[float]) -> Iterator[tuple[str, str]]:
        """Yield every pair of tokens that makes another, best first. SentencePiece merges by the result's score."""
        normal = {token for token, kind in zip(self._tokens, self._types, strict=True) if kind == _NORMAL}
        for token_id in sorted(range(len(scores)), key=lambda i: -scores[i]):
            token = self._tokens[token_id]
            if token not in normal:
                continue
            pairs = [(token[:i], token[i:]) for i in range(1, len(token))]
            pairs = [(left, right) for left, right in pairs if left in normal and right in normal]
            yield from sorted(pairs, key=lambda pair: (self._ids[pair[0]], self._ids[pair[1]]))

    # Special tokens.

    def _add_tokens(self, tokenizer: tokenizers.Tokenizer) -> None:
        """Add the tokens that are never split. Control tokens are never shown either."""
        kinds = [(token, self._types[token_id]) for token, token_id in self._ids.items()]
        hidden = [token for token, kind in kinds if kind in (_CONTROL, _UNKNOWN)]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in hidden])
        shown = [token for token, kind in kinds if kind == _USER_DEFINED]
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in shown])

    def _add_bos_and_eos(self, tokenizer: tokenizers.Tokenizer, adds_bos: bool) -> None:
        """Put BOS before and EOS after a plain prompt, if the file, or else the kind of vocabulary, says so."""
        before = self._framing_token("bos", self._get("add_bos_token", adds_bos))
        after = self._framing_token("eos", self._get("add_eos_token", False))
        if before or after:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *after],
                special_tokens=[(token, self._ids[token]) for token in {*before, *after}],
            )

    def _framing_token(self, name: str, is_wanted: bool) -> list[str]:
        token_id = self._special_id(name)
        return [self._tokens[token_id]] if is_wanted and token_id is not None else []

    def _is_control(self, token: str) -> bool:
        return token in self._ids and self._types[self._ids[token]] == _CONTROL

    # The metadata.

    def _special_id(self, name: str) -> TokenId | None:
        """Return the id of a special token; None if the file has none, or one outside the vocabulary."""
        token_id = self._get(f"{name}_token_id")
        return token_id if isinstance(token_id, int) and 0 <= token_id < len(self._tokens) else None

    def _get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _list(self, key: str, default: list[Any] | None = None) -> list[Any]:
        value = self._get(key, default)
        if not isinstance(value, list):
            raise ModelSourceError(f"tokenizer.ggml.{key} is missing: the file has no usable tokenizer")
        return value

    def _require_same_length(self, key: str, values: Sequence[Any]) -> None:
        if len(values) != len(self._tokens):
            raise ModelSourceError(f"tokenizer.ggml.{key} has {len(values)} entries for {len(self._tokens)} tokens")


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
