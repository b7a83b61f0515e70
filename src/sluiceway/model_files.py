"""Which files make up a model, and how its JSON files are read: one answer for the check, the loader and the tokenizer.

Of a directory the order is that of transformers: `model.safetensors`, else what `model.safetensors.index.json` names.
Any other file of weights is left alone: shards without an index, or the shards of another model beside a whole file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluiceway.errors import ModelSourceError

SINGLE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"

MAX_JSON_BYTES = 64 << 20
"""The largest index of a published model has 10 MB."""

_MAX_GGUF_PARTS = 9_999
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def read_json_object(path: Path) -> Mapping[str, Any]:
    """Raises `ModelSourceError` for a file that cannot be read, that is not JSON, or that holds no object."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelSourceError(f"{path}: is larger than {MAX_JSON_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()  # raises for half of a pair, which is no text
    except OSError as error:
        raise ModelSourceError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise ModelSourceError(f"{path}: is not JSON that can be read: it is nested too deeply") from error
    except ValueError as error:  # no JSON, no UTF-8, no Unicode, a number with thousands of digits
        raise ModelSourceError(f"{path}: is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelSourceError(f"{path}: must hold a JSON object")
    return content


def weight_names(directory: Path) -> list[str]:
    """The files that hold the weights, whether or not they are there. Raises `ModelSourceError` for a damaged index."""
    index = directory / SHARD_INDEX
    if (directory / SINGLE).is_file() or not index.is_file():
        return [SINGLE]
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelSourceError(f"{index}: is not an index of shards: it has no weight_map")
    names = list(weight_map.values())
    if not all(isinstance(name, str) for name in names):
        raise ModelSourceError(f"{index}: is not an index of shards: weight_map must give each tensor a file name")
    if any(Path(name).name != name or name in ("", "..") or "\0" in name for name in names):
        raise ModelSourceError(f"{index}: names a file outside the directory")
    return sorted(set(names))


def missing_weights(directory: Path) -> list[str]:
    return [name for name in weight_names(directory) if not (directory / name).is_file()]


def unused_weights(directory: Path) -> list[str]:
    """Files of weights that are not the model's: nothing reads them."""
    used = set(weight_names(directory))
    return sorted(path.name for path in directory.glob("*.safetensors") if path.name not in used)


def weight_files(directory: Path) -> list[Path]:
    """Raises `ModelSourceError` where one is missing: it names the missing ones, and why others are not used."""
    if missing := missing_weights(directory):
        raise ModelSourceError(f"{directory}: lacks {', '.join(missing)}{why_unused(directory)}")
    return [directory / name for name in weight_names(directory)]


def why_unused(directory: Path) -> str:
    """An explanation to follow the names of missing weights; empty where the directory has no weights at all."""
    unused = unused_weights(directory)
    if not unused:
        return "" if (directory / SHARD_INDEX).is_file() else f" (or {SHARD_INDEX} with its shards)"
    reason = "names other files" if (directory / SHARD_INDEX).is_file() else "is not there to name them"
    return f"; {', '.join(unused)} cannot be used, as {SHARD_INDEX} {reason}"


def gguf_part_paths(path: Path) -> list[Path]:
    """Where all files of the GGUF model lie that this file belongs to: itself alone, unless its name is a part's."""
    match = _PART_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= _MAX_GGUF_PARTS:
        raise ModelSourceError(f"{path}: its name says that it is part {number} of {count}, which cannot be")
    return [path.with_name(f"{match['stem']}-{part:05}-of-{count:05}.gguf") for part in range(1, count + 1)]


def gguf_parts(path: Path) -> list[Path]:
    """`gguf_part_paths`, all of which are there. Raises `ModelSourceError` naming the parts that are missing."""
    parts = gguf_part_paths(path)
    missing = [part.name for part in parts if not part.is_file()]
    if len(parts) > 1 and missing:
        names = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelSourceError(f"{path}: the model has {len(parts)} files, and {names} cannot be found beside this one")
    return parts


def gguf_name(path: Path) -> str:
    """The model's name as its file says it: without the ending, and without the number of a part."""
    match = _PART_NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem
