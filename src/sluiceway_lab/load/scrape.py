"""Parses the metrics of a server, in the Prometheus text format."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})?\s+([^\s#]+)", re.MULTILINE)

Samples = dict[tuple[str, str], float]
"""Values by name and labels. The labels are the text as written, with braces."""

RUNNING = {
    "sluiceway": ("sluiceway_requests_running", "sluiceway_requests_waiting"),
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}
"""By kind of server, the gauges that are 0 when it is idle."""


def parse_samples(text: str) -> Samples:
    """Lines that are not samples, and values that are not numbers, are skipped."""
    samples: Samples = {}
    for name, labels, value in _SAMPLE.findall(text):
        try:
            samples[name, labels] = float(value)
        except ValueError:
            continue
    return samples


def total(samples: Samples, name: str) -> float:
    """Return the sum over all labels; 0.0 without a sample."""
    return sum(value for (other, _), value in samples.items() if other == name)


def kind_of(samples: Samples) -> str | None:
    """Recognise the server by its metrics; None if it is unknown."""
    names = {name for name, _ in samples}
    return next((kind for kind, gauges in RUNNING.items() if gauges[0] in names), None)


def n_busy(kind: str, samples: Samples) -> float:
    """Return how many requests run or wait."""
    return sum(total(samples, gauge) for gauge in RUNNING[kind])
