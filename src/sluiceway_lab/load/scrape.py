"""A server's own numbers, in the Prometheus text format, whoever the server is."""

from __future__ import annotations

import re

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})?\s+([^\s#]+)", re.MULTILINE)

Samples = dict[tuple[str, str], float]
"""By name and labels, the latter as they are written, braces and all."""

RUNNING = {
    "sluiceway": ("sluiceway_requests_running", "sluiceway_requests_waiting"),
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}
"""By kind of server: the gauges that are 0 when nothing runs and nothing waits."""


def parse_samples(text: str) -> Samples:
    """Lines that are no sample are passed over, as are values that are no number."""
    samples: Samples = {}
    for name, labels, value in _SAMPLE.findall(text):
        try:
            samples[name, labels] = float(value)
        except ValueError:
            continue
    return samples


def total(samples: Samples, name: str) -> float:
    """Over all labels; 0.0 where there is no such sample."""
    return sum(value for (other, _), value in samples.items() if other == name)


def kind_of(samples: Samples) -> str | None:
    """Which server has these numbers; None if it is none that is known here."""
    names = {name for name, _ in samples}
    return next((kind for kind, gauges in RUNNING.items() if gauges[0] in names), None)


def n_busy(kind: str, samples: Samples) -> float:
    """How many requests run or wait."""
    return sum(total(samples, gauge) for gauge in RUNNING[kind])
