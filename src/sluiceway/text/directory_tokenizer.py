"""The tokenizer of a model directory in the Hugging Face form: `tokenizer.json` and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sluiceway.errors import ModelSourceError
from sluiceway.text.chat_template import ChatTemplate
from sluiceway.text.subword_tokenizer import SubwordTokenizer
from sluiceway.types import TokenId

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_directory_tokenizer(path: str) -> SubwordTokenizer:
    """Raises `ModelSourceError` where a file is missing or damaged, `ConfigError` where one cannot be supported."""
    directory = Path(path)
    tokenizer = _library_tokenizer(directory / "tokenizer.json")
    config = _json_object(directory / "tokenizer_config.json")
    specials = _special_tokens(config, _json_object(directory / "special_tokens_map.json"))
    tokenizer.add_special_tokens([token for token in specials.values() if tokenizer.token_to_id(token) is not None])
    source = _template_source(directory, config)
    return SubwordTokenizer(
        tokenizer,
        eos_token_ids=list(_eos_token_ids(directory, tokenizer, specials)),
        template=None if source is None else ChatTemplate(source, specials),
    )


def _library_tokenizer(path: Path) -> tokenizers.Tokenizer:
    text = _text_of(path)
    if text is None:
        raise ModelSourceError(f"{path}: there is no such file; a model directory needs a tokenizer.json")
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more precise
        raise ModelSourceError(f"{path}: is not a tokenizer that can be read: {error}") from error
    # Files may carry over the limits of a training run; a prompt is never cut or padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """Name to text; an entry is a text or an object with the text in `content`. Earlier sources win."""
    specials: dict[str, str] = {}
    for source in sources:
        for name in _SPECIAL_NAMES:
            token = source.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str):
                specials.setdefault(name, text)
    return specials


def _eos_token_ids(directory: Path, tokenizer: tokenizers.Tokenizer, specials: Mapping[str, str]) -> Iterator[TokenId]:
    """What generation is told to end at; where nothing tells it, the tokenizer's own end token."""
    for name in ("generation_config.json", "config.json"):
        value = _json_object(directory / name).get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        yield from (token_id for token_id in ids if isinstance(token_id, int))
    token_id = tokenizer.token_to_id(specials.get("eos_token", ""))
    if token_id is not None:
        yield token_id


def _template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` if there is one, else the entry of the configuration; of several named ones the default."""
    source = _text_of(directory / "chat_template.jinja")
    if source is not None:
        return source
    entry = config.get("chat_template")
    if isinstance(entry, list):
        entry = next((named.get("template") for named in entry if named.get("name") == "default"), None)
    return entry if isinstance(entry, str) else None


def _json_object(path: Path) -> Mapping[str, Any]:
    """The file's content, nothing if there is no such file."""
    text = _text_of(path)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelSourceError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelSourceError(f"{path}: must hold a JSON object")
    return content


def _text_of(path: Path) -> str | None:
    """None if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"{path}: cannot be read: {error}") from error
