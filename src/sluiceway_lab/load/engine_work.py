"""Computes, from two scrapes of our own server, how its engine spent its time, and how near it came to the floor."""

from __future__ import annotations

from sluiceway_lab.load.record import Weights
from sluiceway_lab.load.target_server import Samples, total

_SECONDS = "sluiceway_engine_seconds_total"


def engine_figures(before: Samples, after: Samples, weights: Weights | None) -> dict[str, float]:
    """Return the figures of the steps between two scrapes; none if no step ran, or for another server.

    The shares are parts of the engine's busy time: `model` (with sampling), `scheduler` (planning and committing),
    `delivery` (sending). Bytes are those of the weights, once per step, without keys and values. Operations are those
    of the matrix products; the head counts only for generated tokens.
    """

    def grown(name: str) -> float:
        return total(after, name) - total(before, name)

    steps = grown("sluiceway_step_seconds_count")
    parts = {part: _part(after, part) - _part(before, part) for part in ("plan", "model", "commit", "publish")}
    busy_s, model_s = sum(parts.values()), parts["model"]
    if steps <= 0 or model_s <= 0:
        return {}
    figures = {
        "steps": steps,
        "step_mean_s": grown("sluiceway_step_seconds_sum") / steps,
        "model_step_mean_s": model_s / steps,
        "overhead_step_mean_s": (busy_s - model_s) / steps,
        "model_share": model_s / busy_s,
        "scheduler_share": (parts["plan"] + parts["commit"]) / busy_s,
        "delivery_share": parts["publish"] / busy_s,
    }
    if weights is None:
        return figures
    generated, prompt = grown("sluiceway_generated_tokens_total"), grown("sluiceway_prompt_tokens_total")
    body = weights.parameters - weights.head_parameters
    flop = 2 * (body * (generated + prompt) + weights.head_parameters * generated)
    return figures | {
        "weights_gb_per_s": weights.step_bytes * steps / model_s / 1e9,
        "gflop_per_s": flop / model_s / 1e9,
    }


def _part(samples: Samples, part: str) -> float:
    return samples.get((_SECONDS, f'{{part="{part}"}}'), 0.0)
