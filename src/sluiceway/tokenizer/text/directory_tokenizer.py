"""Loads the tokenizer of a model directory in the Hugging Face format: `tokenizer.json` and related files."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from sluiceway.errors import ModelSourceError
from sluiceway.model_files import read_json_object
from sluiceway.tokenizer.text.subword_tokenizer import SubwordTokenizer, library_errors
from sluiceway.tokenizer.text.token_bytes import steps_of
from sluiceway.tokenizer.text.tokenizer import TemplateSource
from sluiceway.types import TokenId

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_TOKEN_ID = re.compile(r"[0-9]{1,9}")


def load_directory_tokenizer(path: str) -> SubwordTokenizer:
    """Load the tokenizer.

    Raises `ModelSourceError` if a file is missing or damaged, `ModelConfigError` if one is not supported.
    """
    directory = Path(path)
    tokenizer = _library_tokenizer(directory / "tokenizer.json")
    config = _json_object(directory / "tokenizer_config.json")
    tokens_map = _json_object(directory / "special_tokens_map.json")
    sources = [(directory / "tokenizer_config.json", config), (directory / "special_tokens_map.json", tokens_map)]
    # In older directories, without `added_tokens_decoder`, the map takes precedence.
    specials = _special_tokens(sources if "added_tokens_decoder" in config else sources[::-1])
    named = {*specials.values(), *_named_by_the_model(config)}
    _add_tokens(directory, tokenizer, config, named)
    listed = {*_listed_specials(config), *_listed_specials(tokens_map)} - {*_added(tokenizer)}
    hidden = sorted(named | listed)
    tokenizer.add_special_tokens([token for token in hidden if tokenizer.token_to_id(token) is not None])
    source = _template_source(directory, config)
    with library_errors(f"{directory / 'tokenizer.json'}: is not a usable tokenizer"):
        return SubwordTokenizer(
            tokenizer,
            eos_token_ids=list(_eos_token_ids(directory, tokenizer, specials)),
            chat_format=None if source is None else TemplateSource(source, specials),
        )


def _library_tokenizer(path: Path) -> tokenizers.Tokenizer:
    text = _text_of(path)
    if text is None:
        raise ModelSourceError(f"{path}: the file does not exist; a model directory needs a tokenizer.json")
    if '"Precompiled"' in text:
        _check_charsmaps(path, text)
    with library_errors(f"{path}: is not a readable tokenizer"):
        tokenizer = tokenizers.Tokenizer.from_str(text)
    # Files may contain the limits of a training run. Prompts are never cut or padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check_charsmaps(path: Path, text: str) -> None:
    """Raise `ModelSourceError` for a table of a `Precompiled` normaliser that would make the library panic.

    A table has the size of a double-array trie in bytes, the trie in units of four bytes, and the replacements as
    UTF-8. For any text, the library reads the first 256 units: https://github.com/google/sentencepiece, `Normalizer`.
    """
    try:
        tables = [
            base64.b64decode(step["precompiled_charsmap"], validate=True)
            for step in steps_of(json.loads(text)["normalizer"])
            if step["type"] == "Precompiled"
        ]
        sizes = [int.from_bytes(table[:4], "little") for table in tables]
        are_whole = all(
            256 * 4 <= size <= len(table) - 4 and size % 4 == 0 for table, size in zip(tables, sizes, strict=True)
        )
        for table, size in zip(tables, sizes, strict=True):
            table[4 + size :].decode()
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelSourceError(f"{path}: has a Precompiled normaliser that cannot be read: {error}") from error
    if not are_whole:
        raise ModelSourceError(f"{path}: has a Precompiled normaliser whose table is cut short")


def _special_tokens(sources: Iterable[tuple[Path, Mapping[str, Any]]]) -> dict[str, str]:
    """Map names to texts. An entry is a text, or an object with the text in `content`. Earlier sources win."""
    specials: dict[str, str] = {}
    for path, source in sources:
        for name in _SPECIAL_NAMES:
            token = source.get(name)
            text = token.get("content", token) if isinstance(token, dict) else token
            if isinstance(text, str):
                specials.setdefault(name, text)
            elif text is not None:
                raise ModelSourceError(f"{path}: {name} must be a text or an object with a text as its content")
    return specials


def _named_by_the_model(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the special tokens that have names of the model's own."""
    named = config.get("extra_special_tokens")
    yield from _texts(named.values() if isinstance(named, dict) else ())


def _listed_specials(source: Mapping[str, Any]) -> Iterator[str]:
    """Yield the special tokens without names, from the older and the newer key."""
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = source.get(key)
        yield from _texts(listed if isinstance(listed, list) else ())


def _texts(entries: Iterable[Any]) -> Iterator[str]:
    for entry in entries:
        text = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(text, str):
            yield text


def _added(tokenizer: tokenizers.Tokenizer) -> Mapping[str, tokenizers.AddedToken]:
    """Map texts to the tokens that the library finds in a text before it splits it."""
    return {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}


def _add_tokens(directory: Path, tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], named: set[str]) -> None:
    """Add the tokens that are only in the other files, as transformers does, and check their ids.

    Raises `ModelSourceError` if a token gets another id than its file says, which is the one that the model knows.
    """
    added = _added(tokenizer)
    modern, older = directory / "tokenizer_config.json", directory / "added_tokens.json"
    by_file = {older: _older_added_tokens(older, added, named)}
    is_modern = "added_tokens_decoder" in config
    if is_modern:
        # A token that was special stays special.
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
    """Read `added_tokens_decoder`, which maps ids, written as texts, to descriptions of tokens."""
    where = f"{path}: added_tokens_decoder"
    if not isinstance(entries, dict):
        raise ModelSourceError(f"{where} must be an object")
    decoder = {}
    for key, entry in entries.items():
        if not _TOKEN_ID.fullmatch(key):
            raise ModelSourceError(f"{where}: {key[:40]!r} is not a token id")
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
    """Read `added_tokens.json`, which maps texts to ids. Descriptions in `tokenizer.json` take precedence."""
    tokens = {}
    for content, token_id in _json_object(path).items():
        if not content or isinstance(token_id, bool) or not isinstance(token_id, int):
            raise ModelSourceError(f"{path}: must map texts to ids of tokens, not {content[:40]!r} to {token_id!r:.40}")
        is_special = content in specials
        own = tokenizers.AddedToken(content, special=is_special, normalized=not is_special)
        tokens[token_id] = added.get(content, own)
    return tokens


def _eos_token_ids(directory: Path, tokenizer: tokenizers.Tokenizer, specials: Mapping[str, str]) -> Iterator[TokenId]:
    """Yield the end tokens that the files of the model name, and the tokenizer's own end token."""
    for path in (directory / "generation_config.json", directory / "config.json"):
        value = _json_object(path).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token_id) is int for token_id in ids):
            raise ModelSourceError(f"{path}: eos_token_id must be a token id or a list of them")
        yield from ids
    token_id = tokenizer.token_to_id(specials.get("eos_token", ""))
    if token_id is not None:
        yield token_id


def _template_source(directory: Path, config: Mapping[str, Any]) -> str | None:
    """Read `chat_template.jinja` if it exists, else the template of the configuration, or its default of several.

    Templates with other names are for other uses, such as tools. A model without a default has no chat format.
    """
    source = _text_of(directory / "chat_template.jinja")
    if source is not None:
        return source
    entry = config.get("chat_template")
    if isinstance(entry, list):
        try:
            entry = {named["name"]: named["template"] for named in entry}.get("default")
        except (LookupError, TypeError) as error:
            raise _wrong_template(directory) from error
    if not (entry is None or isinstance(entry, str)):
        raise _wrong_template(directory)
    return entry


def _wrong_template(directory: Path) -> ModelSourceError:
    path = directory / "tokenizer_config.json"
    return ModelSourceError(f"{path}: chat_template must be a text or a list of objects with a name and a template")


def _json_object(path: Path) -> Mapping[str, Any]:
    """Read the file. The result is empty if the file does not exist."""
    return read_json_object(path) if path.exists() else {}


def _text_of(path: Path) -> str | None:
    """Read the file. The result is None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelSourceError(f"{path}: cannot be read: {error}") from error
