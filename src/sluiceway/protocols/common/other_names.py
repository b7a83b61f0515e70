"""Names that other servers give to fields which this server has under another name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SERVED_AS: Mapping[str, str] = MappingProxyType(
    {
        "candidateCount": "n",
        "candidate_count": "n",
        "do_sample": "temperature",
        "frequencyPenalty": "frequency_penalty",
        "k": "top_k",
        "logitBias": "logit_bias",
        "logits_bias": "logit_bias",
        "maxCompletionTokens": "max_tokens",
        "maxNewTokens": "max_tokens",
        "maxOutputTokens": "max_tokens",
        "maxTokens": "max_tokens",
        "max_gen_len": "max_tokens",
        "max_length": "max_tokens",
        "max_new_tokens": "max_tokens",
        "max_output_tokens": "max_tokens",
        "max_tokens_to_sample": "max_tokens",
        "minP": "min_p",
        "minTokens": "min_tokens",
        "min_new_tokens": "min_tokens",
        "n_predict": "max_tokens",
        "n_probs": "logprobs",
        "numResults": "n",
        "num_generations": "n",
        "num_predict": "max_tokens",
        "num_return_sequences": "n",
        "p": "top_p",
        "presencePenalty": "presence_penalty",
        "random_seed": "seed",
        "rep_pen": "repetition_penalty",
        "rep_penalty": "repetition_penalty",
        "repeat_penalty": "repetition_penalty",
        "repetitionPenalty": "repetition_penalty",
        "return_logprob": "logprobs",
        "stopSequences": "stop",
        "stop_sequences": "stop",
        "stop_strs": "stop",
        "stop_words": "stop",
        "topK": "top_k",
        "topLogprobs": "logprobs",
        "topP": "top_p",
        "top_logprobs_num": "logprobs",
    }
)
"""For fields of other servers: the field that does the same here. Error messages name it."""
