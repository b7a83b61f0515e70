"""Fields that clients send and this server does not act on: which are harmless, and which are refused by name.

A field that is neither served nor in one of these tables is unknown and ignored, as SDKs send new ones every month. A
field that would change the answer must never be ignored silently: serving it means moving it from here to `schema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sluiceway.errors import invalid
from sluiceway.protocols.openai.values import shorten

HARMLESS = frozenset(
    {
        # Bookkeeping of OpenAI's platform.
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        # A hint: a valid answer may follow it or not.
        "verbosity",
        # Means something only together with tools or reasoning, which are refused.
        "parallel_tool_calls",
        "include_reasoning",
    }
)
"""Accepted with any value and without effect."""

_Neutral = tuple[object, ...]
_NOTHING: _Neutral = (None, False, [])
"""Values that ask for nothing, whatever the field."""

_OPENAI: Mapping[str, _Neutral] = {
    "audio": (),
    "echo": (),
    "function_call": ("none", "auto"),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),  # the answer would be the same, but who sends it counts on it to come sooner
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": (),
    "web_search_options": (),
}

# What vLLM, SGLang and llama.cpp add: clients written for those send them to every server.
_EXTENSIONS: Mapping[str, _Neutral] = {
    "add_generation_prompt": (True,),
    "allowed_token_ids": (),
    "bad_words": (),
    "cache_salt": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (),
    "documents": (),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "ebnf": (),
    "grammar": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (),
    "input_ids": (),
    "json_schema": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logits_processors": (),
    "lora_path": ("",),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "n_predict": (),
    "n_probs": (0,),
    "no_stop_trim": (),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": (),
    "repeat_penalty": (1,),
    "return_hidden_states": (),
    "return_tokens_as_token_ids": (),
    "session_params": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_regex": (),
    "structural_tag": (),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (),
    "vllm_xargs": ({},),
    "xtc_probability": (0,),
}

# A chat template writes the special tokens itself; a plain prompt gets them from the tokenizer. The older endpoint has
# one field for log-probabilities, not two.
CHAT: Mapping[str, _Neutral] = MappingProxyType({**_OPENAI, **_EXTENSIONS, "add_special_tokens": ()})
COMPLETIONS: Mapping[str, _Neutral] = MappingProxyType(
    {**_OPENAI, **_EXTENSIONS, "add_special_tokens": (True,), "top_logprobs": (0,)}
)


def refuse_unserved(body: Mapping[str, Any], unserved: Mapping[str, _Neutral]) -> None:
    """Raises for the first field (in alphabetical order) that asks for something which is not served."""
    for field in sorted(body.keys() & unserved.keys()):
        if not _asks_for_nothing(body[field], unserved[field]):
            raise invalid(
                f"`{field}` is not served by this server (it was {shorten(body[field])}); leave it out.",
                field,
                code="unsupported_parameter",
            )


def refuse_misplaced(body: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raises for one of our own options that does not lie in their object: ignored, it would be missed."""
    for option in options:
        if body.get(option) is not None:
            raise invalid(f"`{option}` belongs into the object `sluiceway`.", option, code="unsupported_parameter")


def _asks_for_nothing(value: object, neutral: _Neutral) -> bool:
    return any(_is_same(value, nothing) for nothing in (*_NOTHING, *neutral))


def _is_same(value: object, nothing: object) -> bool:
    """Equality of JSON: 0 is not false, though Python says so; 1 and 1.0 are one number."""
    return isinstance(value, bool) == isinstance(nothing, bool) and value == nothing
