"""Fields that clients send and this server does not act on: which are harmless, and which are refused by name.

A field that is neither served nor in one of these tables is unknown, and ignored: SDKs send new ones every month. A
field that would change the answer must never be ignored, so it is listed here until it is served.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sluiceway.errors import RequestError, invalid
from sluiceway.protocols.common.body import listed, shorten, together
from sluiceway.protocols.common.other_names import SERVED_AS
from sluiceway.types import SamplingParams

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
        "separate_reasoning",
        "stream_reasoning",
        # Means something only together with a sampler that is refused: `dry_multiplier`, `xtc_probability`, …
        "adaptive_decay",
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_range",
        "dry_sequence_breaker_ids",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "mirostat_eta",
        "mirostat_tau",
        "smoothing_curve",
        "xtc_special_tokens_probability",
        "xtc_threshold",
    }
)
"""Fields that are accepted with any value, and have no effect."""

_Neutral = tuple[object, ...]
_NOTHING: _Neutral = (None, False, [])
"""Values with which a field asks for nothing. If true is such a value of a field, false is not."""
_ASKING: Mapping[str, _Neutral] = {
    "enable_thinking": (False,),  # a template may think unless it is told not to
    "samplers": ([],),  # no sampler at all: the likeliest token
    "think": (False,),
}
"""Fields in which one of those values asks for something."""

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

# What other servers have: vLLM, SGLang, llama.cpp, TGI, Ollama, LMDeploy, Aphrodite, TabbyAPI, text-generation-webui,
# MLX, LiteLLM, OpenRouter, transformers and cloud providers. Clients written for those send them to every server.
_EXTENSIONS: Mapping[str, _Neutral] = {
    "adapter": ("",),
    "adapter_id": ("",),
    "adapters": (),
    "adaptive_target": (-1,),
    "add_bos_token": (True,),
    "add_generation_prompt": (True,),
    "add_vision_id": (),
    "additionalModelRequestFields": ({},),
    "allowed_token_ids": (),
    "assistant_prefill": ("",),
    "audio_data": (),
    "bad_words": (),
    "bad_words_ids": (),
    "ban_eos_token": (),
    "banned_strings": ("",),
    "banned_tokens": ("",),
    "beam_search": (),
    "beam_width": (1,),
    "begin_suppress_tokens": (),
    "best_of_n": (1,),
    "bos_token": (),
    "cache_salt": (),
    "candidateCount": (1,),
    "candidate_count": (1,),
    "cfg_scale": (1,),
    "chat_format": (),
    "chat_history": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "chat_template_name": ("",),
    "citation_options": (),
    "context": (),
    "continue_final_message": (),
    "contrastive_alpha": (0,),
    "countPenalty": (),
    "custom_logit_processor": ("",),
    "custom_params": ({},),
    "custom_token_bans": ("",),
    "decoder_input_details": (),
    "details": (),
    "diversity_penalty": (0,),
    "do_sample": (True,),
    "documents": (),
    "draft_model": (),
    "dry_multiplier": (0,),
    "dynamic_temperature": (),
    "dynatemp_max": (0,),
    "dynatemp_min": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (),
    "ebnf": (),
    "enable_search": (),
    "enable_thinking": (),
    "encoder_repetition_penalty": (1,),
    "eos_token": (),
    "eos_token_id": (),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "extra_body": ({},),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "format": ("",),
    "frequencyPenalty": (0,),
    "frequency_context_size": (),
    "generationConfig": ({},),
    "generation_config": ({},),
    "grammar": (),
    "grammar_lazy": (),
    "grammar_string": ("",),
    "grammar_triggers": (),
    "guidance": (),
    "guidance_scale": (1,),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_json_object": (),
    "guided_options": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "id_slot": (-1,),
    "ignore_eos_token": (),
    "image_data": (),
    "images": (),
    "include_stop_str_in_output": (),
    "include_stop_token": (),
    "incremental_output": (True,),  # every event has what is new; false asks for all of the text in each
    "inferenceConfig": ({},),
    "input": (),
    "input_ids": (),
    "inputs": (),
    "instructions": ("",),
    "json_mode": (),
    "json_object": (),
    "json_schema": (),
    "k": (0,),
    "keep_special_tokens": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logitBias": ({},),
    "logit_processor": (),
    "logits_bias": ({},),
    "logits_processor": (),
    "logits_processors": (),
    "logprob_start_len": (-1,),
    "lora": ([],),
    "lora_id": (),
    "lora_path": ("",),
    "lora_request": (),
    "maxCompletionTokens": (),
    "maxNewTokens": (),
    "maxOutputTokens": (),
    "maxTokens": (),
    "max_gen_len": (),
    "max_length": (),
    "max_new_tokens": (),
    "max_output_tokens": (),
    "max_temp": (),
    "max_thinking_tokens": (),
    "max_tokens_to_sample": (),
    "minP": (0,),
    "minTokens": (0,),
    "min_keep": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_temp": (),
    "mirostat": (0,),
    "mirostat_mode": (0,),
    "mm_processor_kwargs": ({},),
    "n_indent": (0,),
    "n_predict": (),
    "n_probs": (0,),
    "negative_prompt": ("",),
    "no_repeat_ngram_size": (0,),
    "no_stop_trim": (),
    "nsigma": (0, -1),
    "numResults": (1,),
    "num_beams": (1,),
    "num_ctx": (),
    "num_draft_tokens": (),
    "num_generations": (1,),
    "num_predict": (),
    "num_return_sequences": (1,),
    "options": ({},),
    "p": (1,),
    "pad_token_id": (),
    "parameters": ({},),
    "parse_tool_calls": (),
    "penalize_newline": (),
    "penalize_nl": (),
    "penalty_alpha": (0,),
    "penalty_prompt": (),
    "penalty_range": (),
    "plugins": (),
    "post_sampling_probs": (),
    "preamble": ("",),
    "prefill": ("",),
    "prefix": ("",),
    "presencePenalty": (0,),
    "presence_context_size": (),
    "preserved_tokens": (),
    "priority": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "prompt_mode": (),
    "prompt_template": ("",),
    "prompt_token_ids": (),
    "quadratic_smoothing": (0,),
    "random_seed": (),
    "raw": (),
    "reasoning": ({},),
    "reasoning_budget": (),
    "reasoning_budget_tokens": (),
    "reasoning_format": ("none", "auto"),
    "regex": (),
    "regex_pattern": ("",),
    "remove_invalid_values": (),
    "renormalize_logits": (),
    "rep_pen": (1,),
    "rep_pen_range": (),
    "rep_pen_slope": (),
    "rep_penalty": (1,),
    "repeat_last_n": (-1,),
    "repeat_penalty": (1,),
    "repetitionPenalty": (1,),
    "repetition_context_size": (),
    "repetition_detection": (),
    "repetition_range": (),
    "responseFormat": (),
    "responseMimeType": ("text/plain",),
    "responseSchema": (),
    "response_fields": (),
    "response_modalities": (),
    "response_prefix": ("",),
    "return_full_text": (),
    "return_hidden_states": (),
    "return_logprob": (),
    "return_prompt_logprobs": (),
    "return_routed_experts": (),
    "return_text_in_logprobs": (),
    "return_tokens": (),
    "return_tokens_as_token_ids": (),
    "safe_prompt": (),
    "safety_settings": (),
    "sampler_order": (),
    "sampler_priority": (),
    "sampler_seed": (),
    "samplers": (),
    "schema": (),
    "search_parameters": (),
    "sequence_bias": (),
    "session_params": (),
    "skew": (0,),
    "skip_special_tokens": (True,),
    "slot_id": (-1,),
    "smoothing_factor": (0,),
    "spaces_between_special_tokens": (True, False),  # there are none: `skip_special_tokens`
    "speculative": (),
    "stopSequences": (),
    "stop_at": (),
    "stop_regex": (),
    "stop_sequences": (),
    "stop_strs": (),
    "stop_words": (),
    "strip_stop": (True,),
    "structural_tag": (),
    "structured_outputs": (),
    "suppress_tokens": (),
    "system": ("",),
    "systemInstruction": ("",),
    "system_instruction": ("",),
    "system_prompt": ("",),
    "t_max_predict_ms": (0,),
    "t_max_prompt_ms": (0,),
    "temp_exponent": (),
    "temp_last": (),
    "temperature_last": (),
    "template": ("",),
    "template_kwargs": ({},),
    "template_vars": ({},),
    "tfs": (1,),
    "tfs_z": (1,),
    "think": (),
    "thinking": ({"type": "disabled"},),
    "thinkingConfig": (),
    "thinking_budget": (),
    "thinking_budget_tokens": (),
    "thinking_token_budget": (),
    "token_bans": (),
    "token_healing": (),
    "token_ids_logprob": (),
    "topK": (0,),
    "topLogprobs": (0,),
    "topP": (1,),
    "top_a": (0,),
    "top_h": (),
    "top_logprobs_num": (0,),
    "top_n": (0,),
    "top_n_sigma": (-1, 0),
    "top_n_tokens": (0,),
    "transforms": (),
    "trim_stop": (True,),
    "truncate": (),
    "truncate_prompt_tokens": (),
    "typical": (1,),
    "typical_p": (1,),
    "use_beam_search": (),
    "video_data": (),
    "vllm_xargs": ({},),
    "watermark": (),
    "with_special_tokens": (),
    "xtc_probability": (0,),
}

# A chat template writes the special tokens itself; a plain prompt gets them from the tokenizer. The older endpoint has
# one field for logprobs, not two.
_SHARED: Mapping[str, _Neutral] = {
    field: neutral
    for field, neutral in {**_OPENAI, **_EXTENSIONS}.items()
    if field not in SamplingParams.__struct_fields__
}
"""Without the sampling parameters, so that a new one is served as soon as it is in their table."""

CHAT: Mapping[str, _Neutral] = MappingProxyType({**_SHARED, "add_special_tokens": (), "best_of": (1,)})
COMPLETIONS: Mapping[str, _Neutral] = MappingProxyType({**_SHARED, "add_special_tokens": (True,), "top_logprobs": (0,)})


def refuse_unserved(body: Mapping[str, Any], unserved: Mapping[str, _Neutral]) -> None:
    """Raises for the fields that ask for something which is not served, in alphabetical order."""
    asking = [
        field
        for field in sorted(body.keys() & unserved.keys())
        if not _asks_for_nothing(field, body[field], unserved[field])
    ]
    if asking:
        raise together([_unserved(field, body[field]) for field in asking])


def _unserved(field: str, value: object) -> RequestError:
    served = SERVED_AS.get(field)
    advice = "leave it out" if served is None else f"the field for it is `{served}`"
    return invalid(
        f"`{field}` is not served by this server (it was {shorten(value)}); {advice}.",
        field,
        code="unsupported_parameter",
    )


def refuse_misplaced(body: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raises for our own options that do not lie in their object: ignored, they would be missed."""
    misplaced = [option for option in options if body.get(option) is not None]
    if misplaced:
        belong = "belongs" if len(misplaced) == 1 else "belong"
        raise invalid(
            f"{listed(misplaced)} {belong} into the object `sluiceway`.", misplaced[0], code="unsupported_parameter"
        )


def _asks_for_nothing(field: str, value: object, neutral: _Neutral) -> bool:
    if any(_is_same(value, one) for one in _ASKING.get(field, ())):
        return False
    nothing = neutral if value is False and any(one is True for one in neutral) else (*_NOTHING, *neutral)
    return any(_is_same(value, one) for one in nothing)


def _is_same(value: object, nothing: object) -> bool:
    """Equality of JSON: 0 is not false, though Python says so; 1 and 1.0 are one number."""
    return isinstance(value, bool) == isinstance(nothing, bool) and value == nothing
