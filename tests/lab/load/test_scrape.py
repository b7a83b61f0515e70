"""Metrics of three servers."""

from __future__ import annotations

import pytest

from sluiceway.obs.metrics import Metrics
from sluiceway_lab.load.scrape import kind_of, n_busy, parse_samples, total

VLLM = """# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
"""
LLAMA_CPP = """# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
llamacpp:prompt_tokens_seconds nan
"""


def test_samples_are_read_with_their_labels() -> None:
    samples = parse_samples(VLLM + "odd{} lines\nbare 1e3 # {} 7\n")
    assert samples["bare", ""] == 1000.0
    assert samples["vllm:num_requests_running", '{engine="1",model_name="m"}'] == 1.0
    assert len(samples) == 4


def test_total_is_over_all_labels() -> None:
    samples = parse_samples(VLLM)
    assert (total(samples, "vllm:num_requests_running"), total(samples, "none")) == (3.0, 0.0)


@pytest.mark.parametrize(
    ("text", "kind", "busy"),
    [(VLLM, "vllm", 7.0), (LLAMA_CPP, "llama.cpp", 1.0), (Metrics().render().decode(), "sluiceway", 0.0)],
)
def test_server_is_known_by_its_gauges(text: str, kind: str, busy: float) -> None:
    samples = parse_samples(text)
    assert kind_of(samples) == kind and n_busy(kind, samples) == busy


def test_other_server_is_unknown() -> None:
    assert kind_of(parse_samples("up 1\n")) is None
