"""The default model gives sensible answers, the same tokens as transformers, and the same answers in any batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sluiceway.config import Dtype, ModelFiles, ModelKind
from sluiceway.engine.scheduler.plan import Plan
from sluiceway.model.kernels.loader import best_kernels
from sluiceway.model.load import load_model
from sluiceway.model.runner import TorchRunner
from sluiceway.tokenizer.text.gguf_metadata import read_metadata
from sluiceway.types import SamplingParams
from support.native import SETS, chosen
from support.tiny_models import GREEDY, row

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain why the sky is blue in one sentence.",
    "Give me three names for a cat.",
    "What is 12 times 12?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "List the planets of the solar system.",
    "How do I boil an egg?",
    "Summarise the plot of Cinderella.",
    "请用一句话介绍北京。",
    "日本の首都はどこですか？",
    "What does HTTP status 404 mean?",
    "Write a Python function that reverses a string.",
    "Is a tomato a fruit or a vegetable?",
]
TEXTS = [
    "Once upon a time, in a small village by the sea,",
    "The theory of evolution states that",
    "def fibonacci(n):\n    ",
    "import numpy as np\n\ndef softmax(x):\n",
    "SELECT name, age FROM users WHERE",
    "for (int i = 0; i < n; i++) {\n",
    "<html>\n<head>\n<title>",
    '{"name": "Alice", "age": 30, "children": [',
    "In 1969, humans first",
    "The ingredients for a good bread are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: How many legs does a spider have?\nA:",
    "1, 1, 2, 3, 5, 8, 13,",
    "人工智能是",
    "東京は",
    "안녕하세요, 저는",
    "La capitale de l'Italie est",
    "Der schnelle braune Fuchs",
    "Привет, как",
    "# Introduction\n\nThis document describes",
    "The quick brown fox jumps over the lazy dog. " * 8,
    "a",
    "!!! ??? ...",
    "E = mc^2 means that",
    "Water is made of hydrogen and",
]
N_TOKENS = 64


@pytest.fixture(scope="module")
def path() -> str:
    path = os.environ.get("SLUICEWAY_TEST_MODEL")
    if not path:
        pytest.skip("SLUICEWAY_TEST_MODEL names no model file")
    return path


@pytest.fixture(scope="module")
def tokenizer(path: str) -> Tokenizer:
    metadata = read_metadata(path)
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name) for name in ("<|im_start|>", "<|im_end|>")])
    return tokenizer


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    chats = [f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n" for question in QUESTIONS]
    return [list(tokenizer.encode(text).ids) for text in (*chats, *TEXTS)]


def runner(path: str, dtype: Dtype) -> TorchRunner:
    files = ModelFiles(kind=ModelKind.GGUF, path=path, name="default")
    return TorchRunner(load_model(files, dtype), n_blocks=512, threads=1)


@pytest.fixture(scope="module")
def float32_runner(path: str) -> TorchRunner:
    return runner(path, "float32")


def answers(runner: TorchRunner, asked: Sequence[Sequence[int]], n_tokens: int, n_chunk: int = 400) -> list[list[int]]:
    """Generate greedy answers: all prompts in one batch, in chunks, each with 12 blocks of its own."""
    known = [list(prompt) for prompt in asked]
    computed = [0] * len(known)
    while any(len(k) < len(prompt) + n_tokens for k, prompt in zip(known, asked, strict=True)):
        rows = []
        for i, tokens in enumerate(known):
            n = min(n_chunk, len(tokens) - computed[i])
            is_last = computed[i] + n == len(tokens)
            rows.append(row(tokens, computed[i], n, 12 * i, rid=i, samples=is_last, sampling=GREEDY))
            computed[i] += n
        result = iter(runner.launch(Plan(1, tuple(rows), ())).wait().token_ids)
        for each, tokens in zip(rows, known, strict=True):
            if each.samples:
                tokens.append(next(result))
    return [tokens[len(prompt) : len(prompt) + n_tokens] for tokens, prompt in zip(known, asked, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_model_knows_the_capital_of_france(path: str, tokenizer: Tokenizer, dtype: Dtype) -> None:
    """With weights in the wrong order the model would write other words."""
    if dtype == "int8" and best_kernels() is None:
        pytest.skip("int8 needs the native kernels")
    asked = prompts(tokenizer)[0]
    (answer,) = answers(runner(path, dtype), [asked], 10)
    assert "The capital of France is Paris." in tokenizer.decode(answer)


def assert_same_alone_and_in_a_batch(model: TorchRunner, asked: Sequence[Sequence[int]]) -> None:
    """Compute all prompts together in chunks of 5 tokens, then some of them alone and whole."""
    together = answers(model, asked, 12, n_chunk=5)
    for i in range(0, len(asked), 3):
        assert answers(model, asked[i : i + 1], 12) == together[i : i + 1]


def test_float32_answers_are_the_same_alone_and_in_a_batch(float32_runner: TorchRunner, tokenizer: Tokenizer) -> None:
    """The test has twelve different prompts."""
    assert_same_alone_and_in_a_batch(float32_runner, prompts(tokenizer)[4:40:3])


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("name", SETS)
def test_native_answers_are_the_same_alone_and_in_a_batch(
    path: str, monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer, name: str, dtype: Dtype
) -> None:
    """Each kernel set is tested. The plain one is slow and gets fewer prompts."""
    with chosen(monkeypatch, name):
        model = runner(path, dtype)
    assert_same_alone_and_in_a_batch(model, prompts(tokenizer)[4 : 16 if name == "plain" else 40 : 3])


def independent_reference(path: str) -> Any:
    """The model of transformers, with the weights that transformers reads from the file."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(**load_gguf_checkpoint(path, return_tensors=False)["config"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_forty_answers_equal_those_of_transformers(
    path: str, float32_runner: TorchRunner, tokenizer: Tokenizer
) -> None:
    """Each answer has 64 greedy tokens, in float32.

    The reference is given each prompt with our answer: where each of our tokens is its largest logit, it would have
    written the same answer itself.
    """
    asked = prompts(tokenizer)
    assert len(asked) == 40
    ours = answers(float32_runner, asked, N_TOKENS)
    reference = independent_reference(path)
    for prompt, answer in zip(asked, ours, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([[*prompt, *answer]]), logits_to_keep=N_TOKENS + 1).logits[0]
        expected = logits[:-1].argmax(-1).tolist()
        assert answer == expected, tokenizer.decode(prompt)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_logprobs_equal_those_of_transformers(path: str, float32_runner: TorchRunner, tokenizer: Tokenizer) -> None:
    """The reference is a log-softmax in float64 of the reference model's logits, for the twenty likeliest tokens."""
    asked = prompts(tokenizer)
    sampling = SamplingParams(temperature=0.0, logprobs=20)
    rows = [row(tokens, 0, len(tokens), 12 * i, rid=i, sampling=sampling) for i, tokens in enumerate(asked)]
    result = float32_runner.launch(Plan(1, tuple(rows), ())).wait()
    reference = independent_reference(path)
    for prompt, token_id, found in zip(asked, result.token_ids, result.logprobs, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
        exact = logits.double().log_softmax(-1)
        assert found is not None
        assert found.logprob == pytest.approx(float(exact[token_id]), abs=1e-3)
        assert found.top_logprobs == pytest.approx(exact[list(found.top_ids)].tolist(), abs=1e-3)
        assert found.top_logprobs == pytest.approx(exact.topk(20).values.tolist(), abs=1e-3)
