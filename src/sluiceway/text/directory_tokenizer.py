"""The tokenizer of a model directory in the Hugging Face form: `tokenizer.json` and the files beside it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sluiceway.errors import ModelSourceError
from sluiceway.model_files import read_json_object
from sluiceway.text.chat_template import ChatTemplate
from sluiceway.text.subword_tokenizer import SubwordTokenizer
from sluiceway.types import TokenId

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def load_directory_tokenizer(path: str) -> SubwordTokenizer:
    """Raises `ModelSourceError` where a file is missing or damaged, `ConfigError` where one cannot be supported."""
    directory = Path(path)
    tokenizer = _library_tokenizer(directory / "tokenizer.json")
    config = _json_object(directory / "tokenizer_config.json")
    tokens_map = _json_object(directory / "special_tokens_map.json")
    # Older files, those without `added_tokens_decoder`, keep what counts in the map.
    sources = (config, tokens_map) if "added_tokens_decoder" in config else (tokens_map, config)
    specials = _special_tokens(*sources)
    named = {*specials.values(), *_named_by_the_model(config)}
    _add_tokens(directory, tokenizer, config, named)
    listed = {*_listed_specials(config), *_listed_specials(tokens_map)} - {*_added(tokenizer)}
    hidden = sorted(named | listed)
    tokenizer.add_special_tokens([token for token in hidden if tokenizer.token_to_id(token) is not None])
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


def _named_by_the_model(config: Mapping[str, Any]) -> Iterator[str]:
    """Special tokens to which a model gives names of its own."""
    named = config.get("extra_special_tokens")
    yield from _texts(named.values() if isinstance(named, dict) else ())


def _listed_specials(source: Mapping[str, Any]) -> Iterator[str]:
    """Special tokens without a name, in the older and the newer place."""
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = source.get(key)
        yield from _texts(listed if isinstance(listed, list) else ())


def _texts(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield text


def _added(tokenizer: tokenizers.Tokenizer) -> Mapping[str, tokenizers.AddedToken]:
    """By their texts, the tokens that are found in a text before it is split."""
    return {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}


def _add_tokens(directory: Path, tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], named: set[str]) -> None:
    """Adds the tokens that only the files beside `tokenizer.json` have, as transformers does, and checks their ids.

    `ModelSourceError` where a token has another id than its file says: the model was trained on that one.
    """
    added = _added(tokenizer)
    modern, older = directory / "tokenizer_config.json", directory / "added_tokens.json"
    by_file = {older: _older_added_tokens(older, added, named)}
    is_modern = "added_tokens_decoder" in config
    if is_modern:
        # What was special once stays so.
        hidden = named | {token.content for token in added.values() if token.special}
        by_file[modern] = _decoder_of(modern, config["added_tokens_decoder"], hidden)
    new_tokens = by_file[modern if is_modern else older]
    tokenizer.add_tokens([token for _, token in sorted(new_tokens.items(), key=lambda item: item[0])])
    for path, tokens in by_file.items():
        for token_id, token in tokens.items():
            if (found := tokenizer.token_to_id(token.content)) != token_id:
                raise ModelSourceError(
                    f"{path}: the token {token.content!r} has the id {token_id}, but by tokenizer.json it "
                    + (f"would have {found}" if found is not None else "has none")
                )


def _decoder_of(path: Path, entries: Any, specials: Collection[str]) -> dict[TokenId, tokenizers.AddedToken]:
    """`added_tokens_decoder`: ids, as texts, to descriptions of tokens."""
    where = f"{path}: added_tokens_decoder"
    if not isinstance(entries, dict):
        raise ModelSourceError(f"{where} must be an object")
    decoder = {}
    for key, entry in entries.items():
        if not _TOKEN_ID.fullmatch(key):
            raise ModelSourceError(f"{where}: {key[:40]!r} is no id of a token")
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content:
            raise ModelSourceError(f"{where}: the entry of id {key} must be an object with a text in content")
        flags = {flag: entry[flag] for flag in _TOKEN_FLAGS if flag in entry}
        if not all(isinstance(value, bool) for value in flags.values()):
            raise ModelSourceError(f"{where}: the flags of id {key} must be true or false")
        flags["special"] = flags.get("special", False) or content in specials
        decoder[int(key)] = tokenizers.AddedToken(content, **flags)
    return decoder


def _older_added_tokens(
    path: Path, added: Mapping[str, tokenizers.AddedToken], specials: Collection[str]
) -> dict[TokenId, tokenizers.AddedToken]:
    """`added_tokens.json`: texts to ids. What `tokenizer.json` describes itself is described better there."""
    tokens = {}
    for content, token_id in _json_object(path).items():
        if not content or isinstance(token_id, bool) or not isinstance(token_id, int):
            raise ModelSourceError(f"{path}: must map texts to ids of tokens, not {content[:40]!r} to {token_id!r:.40}")
        is_special = content in specials
        own = tokenizers.AddedToken(content, special=is_special, normalized=not is_special)
        tokens[token_id] = added.get(content, own)
    return tokens


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
    return read_json_object(path) if path.exists() else {}


def _text_of(path: Path) -> str | None:
    """None if there is no such file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"{path}: cannot be read: {error}") from error
