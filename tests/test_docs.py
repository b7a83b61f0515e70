"""The docs agree with the code: flags, fields, codes, limits, metrics and tables. Every link leads to a file."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

from sluiceway.api.endpoints.streams import MAX_LISTED
from sluiceway.api.http.protocol import HEAD_TIMEOUT_S, MAX_HEAD_BYTES, MAX_HEADERS
from sluiceway.engine.scheduler.sequence import TRANSITIONS, Input, State
from sluiceway.llm import LLM, SamplingParams
from sluiceway.model import gguf_config, hf_config, safetensors, sampler
from sluiceway.model.architectures.registry import ARCHITECTURES, BY_GGUF_NAME
from sluiceway.protocols.common.body import MAX_COMMAS, MAX_CONTAINERS, MAX_NESTING
from sluiceway.protocols.common.errors import refusal_for_status
from sluiceway.protocols.common.fields import MAX_LOGIT_BIASES, MAX_STOP_CHARACTERS, MAX_STOP_TOKEN_IDS, MAX_STOPS
from sluiceway.protocols.native.requests import NativeFields
from sluiceway.protocols.openai import unserved
from sluiceway.protocols.openai.requests import ChatFields, CompletionFields, SluicewayOptions
from sluiceway.ranges import CHOICES, MARK, MARK_S, MAX_COUNT, WAIT_S
from sluiceway.response.idempotency import MAX_KEY_CHARACTERS
from sluiceway.tokenizer.text.pre_tokenizers import SPLITTINGS
from support.architecture_picture import picture
from support.cli_page import page
from support.metrics_table import page_with_table
from support.mirror import PACKAGE, ROOT

LIMITS = {
    "levels of lists": MAX_NESTING,
    "of these together": MAX_CONTAINERS,
    "commas": MAX_COMMAS,
    "KiB": MAX_HEAD_BYTES >> 10,
    "headers": MAX_HEADERS,
    "within": int(HEAD_TIMEOUT_S),
    "prompts times": CHOICES.high,
    "strings of": MAX_STOPS,
    "characters": MAX_STOP_CHARACTERS,
    "`stop_token_ids`": MAX_STOP_TOKEN_IDS,
    "`logit_bias`": MAX_LOGIT_BIASES,
    "2^31": MAX_COUNT,
    "`grace_s`": WAIT_S.high,
    "2^40": MARK.high,
    "marks and times": MARK_S.high,
    "`stream_id`": MAX_KEY_CHARACTERS,
    "`?limit=`": MAX_LISTED,
}
"""Limits in the table of the page, each with a word of its line."""

UNREACHED = {"deadline_exceeded"}
"""Error codes of finish reasons that the server does not send yet."""

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def words_of(name: str) -> set[str]:
    """Return all words that a page of the docs formats as code."""
    return set(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / name).read_text()))


def test_the_page_of_the_command_line_is_up_to_date() -> None:
    """`scripts/docs` writes it."""
    assert (ROOT / "docs" / "cli.md").read_text() == page()
    assert "`None`" not in page()


def test_the_picture_of_the_architecture_is_up_to_date() -> None:
    """`scripts/docs` writes it."""
    assert (ROOT / "docs" / "architecture.svg").read_text() == picture()


def test_every_served_field_is_on_the_page_of_the_api() -> None:
    served = {*ChatFields.model_fields, *CompletionFields.model_fields, *NativeFields.model_fields}
    options = {f"sluiceway.{field}" for field in SluicewayOptions.model_fields}
    assert (served | options | unserved.HARMLESS) <= words_of("api.md")


def test_every_error_code_is_on_the_page_of_the_api() -> None:
    """Programs act on codes. Codes that the server does not send yet are left out."""
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    codes = set(re.findall(r"\bcode=\"([a-z_]+)\"", source))
    codes |= {refusal_for_status(status).code for status in (400, 404, 405, 408, 413, 415, 431)}
    assert codes and codes - UNREACHED <= words_of("api.md")


@pytest.mark.parametrize(("word", "limit"), LIMITS.items(), ids=LIMITS)
def test_every_limit_is_on_the_page_of_the_api(word: str, limit: int) -> None:
    section = (ROOT / "docs" / "api.md").read_text().partition("\n## Limits\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if word in line]
    assert any(re.search(rf"(?<![\d,]){limit:,}(?![\d,]\d)", line) for line in lines), (limit, lines)


def test_every_argument_of_llm_is_on_its_page() -> None:
    """Settings, methods and sampling parameters."""
    settings = {name for name in inspect.signature(LLM).parameters if name != "model"}
    methods = {name for name, member in vars(LLM).items() if callable(member) and not name.startswith("_")}
    page = (ROOT / "docs" / "python.md").read_text()
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", page))))
    assert settings | methods | set(SamplingParams.__struct_fields__) <= words


def test_the_order_of_the_filters_is_that_of_the_sampler() -> None:
    """The docstring of the sampler has the order, and its tests check it."""
    order = list(re.findall(r"temperature|min_p|top_k|top_p", sampler.__doc__ or ""))
    page = (ROOT / "docs" / "api.md").read_text().partition("### How a token is chosen")[2].partition("###")[0]
    steps = re.findall(r"^\d\. .*?`(temperature|min_p|top_k|top_p)`", page, re.MULTILINE)
    assert steps == list(dict.fromkeys(order)) == ["temperature", "min_p", "top_k", "top_p"]


def test_the_table_of_states_is_that_of_the_code() -> None:
    """Each row is a state, each column an input, and `-` a pair that raises."""
    page = (ROOT / "docs" / "design.md").read_text()
    rows = ["| " + " | ".join([state.value, *(_next(state, given) for given in Input)]) + " |" for state in State]
    assert "\n".join(rows) in page
    assert "| state | " + " | ".join(given.value for given in Input) + " |" in page


def _next(state: State, given: Input) -> str:
    return TRANSITIONS[state, given].value if (state, given) in TRANSITIONS else "-"


def test_the_table_of_metrics_is_up_to_date() -> None:
    """`scripts/docs` writes it."""
    page = (ROOT / "docs" / "observability.md").read_text()
    assert page == page_with_table(page)


def _block_types() -> list[str]:
    """Return the block types of GGUF that the package can dequantise."""
    names = []
    for kind, (_, n_bytes) in GGML_QUANT_SIZES.items():
        with contextlib.suppress(NotImplementedError, KeyError):
            dequantize(np.zeros((1, n_bytes), dtype=np.uint8), kind)
            names.append(kind.name)
    return names


MODELS: dict[str, tuple[str, Collection[str]]] = {
    "rotary types": ("`rope_type` in `rope_scaling` or `rope_parameters`: (.*?)\\.", hf_config.SUPPORTED_ROPE_TYPES),
    "refused keys": (r"\(`logits_scaling` 1, `use_qk_norm` false\):\n\n(.*?)\.\n", hf_config.REFUSED),
    "dtypes": (r"Tensors may be (.*?)\.", safetensors.DTYPE_BYTES),
    "GGUF architectures": (r"`general\.architecture`: (.*?)\.\n", BY_GGUF_NAME),
    "GGUF rotary types": (r"`rope\.scaling\.type`: (.*?);", gguf_config.SUPPORTED_ROPE_TYPES),
    "GGUF tensor types": (r"not computed with as it is:\n\n(.*?)\.\n", _block_types()),
    "GGUF refused keys": (r"unless their value changes nothing:\n\n(.*?)\.\n\n", gguf_config.REFUSED),
    "pre-tokenizers": (r"`tokenizer\.ggml\.pre` is one of\n\n(.*?)\.\n\n", SPLITTINGS),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_lists_of_models_are_those_of_the_code(name: str) -> None:
    pattern, expected = MODELS[name]
    found = re.search(pattern, (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    assert found and sorted(re.findall(r"`([^`]+)`", found[1])) == sorted(expected)


def test_the_table_of_architectures_is_that_of_the_code() -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\w+ForCausalLM)` \| `(\w+)` \|", page, re.MULTILINE)
    assert dict(rows) == {architecture.name: architecture.model_type for architecture in ARCHITECTURES}


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "docs/lab/README.md"], ids=lambda p: p.name
)
def test_every_page_is_linked_from_the_readme(page: Path) -> None:
    """In its list of pages."""
    pages = (ROOT / "README.md").read_text().partition("\n## The pages\n")[2].partition("\n## ")[0]
    assert f"]({page.relative_to(ROOT)})" in pages


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_curl_of_the_docs_shows_its_errors(path: Path) -> None:
    """It shows no progress, but it shows that a server is missing."""
    assert not re.findall(r"curl -s(?!S).*", path.read_text())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_link_leads_to_an_existing_file(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target
