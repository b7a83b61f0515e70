"""How byte-level vocabularies split text into words before merging, by the name that GGUF files use.

The names are those of `tokenizer.ggml.pre` in llama.cpp
(https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp). The patterns are those of the `tokenizer.json`
of the models with these names. A wrong split gives wrong tokens without any error, so an unknown name is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

from sluiceway.errors import ModelConfigError

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CAPITALISED = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+"
_UPPERCASE = rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*"
_SYMBOLS_AND_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"

_LLAMA_3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_QWEN_2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_TEKKEN = rf"{_CAPITALISED}|{_UPPERCASE}|\p{{N}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
_GPT_4O = rf"{_CAPITALISED}{_CONTRACTION}?|{_UPPERCASE}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_SYMBOLS_AND_SLASHES}|{_SPACES}"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}")
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """Describes how a text is split.

    The `patterns` are applied in order: each splits the parts that the earlier ones left. With `gpt2_words`, the
    pattern of GPT-2 comes last. With `whole_words`, a word that is itself a token becomes that token, whatever the
    merges say. `adds_bos` and `nfc` are defaults for files that do not say.
    """

    patterns: tuple[str, ...] = ()
    gpt2_words: bool = False
    whole_words: bool = False
    adds_bos: bool = False
    nfc: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_words)
        return pre_tokenizers.Sequence([*splits, to_bytes])

    def normalizer(self) -> normalizers.Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT_2_SPLIT = Splitting(gpt2_words=True)
_DIGITS_SPLIT = Splitting((r"\p{N}",), gpt2_words=True)
_LLAMA_3_SPLIT = Splitting((_LLAMA_3,), whole_words=True, adds_bos=True)
_QWEN_2_SPLIT = Splitting((_QWEN_2,), nfc=True)
_GPT_4O_SPLIT = Splitting((_GPT_4O,))

SPLITTINGS: dict[str, Splitting] = {
    "gpt-2": _GPT_2_SPLIT,
    "phi-2": _GPT_2_SPLIT,
    "exaone4": _GPT_2_SPLIT,
    "granite-docling": _GPT_2_SPLIT,
    "mellum": _GPT_2_SPLIT,
    "trillion": _GPT_2_SPLIT,
    "smollm": _DIGITS_SPLIT,
    "starcoder": _DIGITS_SPLIT,
    "refact": _DIGITS_SPLIT,
    "codeshell": _DIGITS_SPLIT,
    "command-r": _DIGITS_SPLIT,
    "exaone": _DIGITS_SPLIT,
    "minerva-7b": _DIGITS_SPLIT,
    "llama-bpe": _LLAMA_3_SPLIT,
    "llama3": _LLAMA_3_SPLIT,
    "llama-v3": _LLAMA_3_SPLIT,
    "lfm2": _LLAMA_3_SPLIT,
    "dbrx": Splitting((_LLAMA_3,)),
    "smaug-bpe": Splitting((_LLAMA_3,)),
    "chatglm-bpe": Splitting((_LLAMA_3,)),
    "glm4": Splitting((_LLAMA_3,)),
    "qwen2": _QWEN_2_SPLIT,
    "deepseek-r1-qwen": _QWEN_2_SPLIT,
    "stablelm2": Splitting((_QWEN_2,)),
    "megrez": Splitting((_QWEN_2,)),
    "hunyuan": Splitting((_QWEN_2,)),
    "tekken": Splitting((_TEKKEN,), whole_words=True, adds_bos=True),
    "gpt-4o": _GPT_4O_SPLIT,
    "llama4": _GPT_4O_SPLIT,
    "deepseek-coder": Splitting(_DEEPSEEK_CODER),
    "deepseek-v3": Splitting(_DEEPSEEK_3),
    "hunyuan-dense": Splitting(_DEEPSEEK_3),
}


def splitting_named(name: str | None) -> Splitting:
    """Find a splitting by its name. Raises `ModelConfigError` for an unknown name, or for None."""
    splitting = SPLITTINGS.get(name or "")
    if splitting is None:
        known = ", ".join(sorted(SPLITTINGS))
        raise ModelConfigError("tokenizer.ggml.pre", f"{name!r} is not a known pre-tokenizer; these are: {known}")
    return splitting
