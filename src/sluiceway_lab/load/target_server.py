"""The server under measurement: its kind, its model, the fields that it accepts, its processes, its metrics."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sluiceway_lab.load.client import LoadError, Target, complaint, get, record
from sluiceway_lab.load.processes import ProcessUsage, family, usage
from sluiceway_lab.load.record import ServerFacts, Weights
from sluiceway_lab.load.workload import completion

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})?\s+([^\s#]+)", re.MULTILINE)

Samples = dict[tuple[str, str], float]
"""Values by name and labels. The labels are the text as written, with braces."""

RUNNING = {
    "sluiceway": ("sluiceway_requests_running", "sluiceway_requests_waiting"),
    "vllm": ("vllm:num_requests_running", "vllm:num_requests_waiting"),
    "llama.cpp": ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
}
"""By kind of server, the gauges that are 0 when it is idle."""
COMPLETIONS = "/v1/completions"
_IGNORE_EOS = {"ignore_eos": True}
_USAGE = {"stream_options": {"include_usage": True}}
_EXTRAS: tuple[dict[str, Any], ...] = ({**_IGNORE_EOS, **_USAGE}, _USAGE, _IGNORE_EOS, {})
"""Fields that a server is asked to understand, the most useful set first."""


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


class _Named(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Named]


@dataclass(frozen=True, kw_only=True)
class TargetServer:
    """A server under measurement. `processes` has names by process id, and is empty if they are unknown.

    `weights` is what a step of its model reads, if that is known. `ready_s` is how long its start took, if we started
    it.
    """

    name: str
    target: Target
    model: str
    kind: str | None
    version: str | None
    extras: dict[str, Any]
    processes: dict[int, str] = field(default_factory=dict)
    weights: Weights | None = None
    ready_s: float | None = None

    def body(self, prompt: str, n_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return a request for a completion. `fields` replace others; None removes one.

        With `logprobs=5` each event has its tokens with the five likeliest in their place.
        """
        body = completion(self.model, prompt, n_tokens, self.extras) | fields
        return {name: value for name, value in body.items() if value is not None}

    def request(self, prompt: str, n_tokens: int, **fields: Any) -> bytes:
        return self.target.request("POST", COMPLETIONS, self.body(prompt, n_tokens, **fields))

    async def samples(self) -> Samples:
        """Scrape its metrics; empty if they are unknown."""
        if self.kind is None:
            return {}
        return parse_samples((await get(self.target, "/metrics")).body.decode())

    async def json(self, path: str) -> dict[str, Any]:
        """Get an object from a path."""
        decoded: dict[str, Any] = msgspec.json.decode((await get(self.target, path)).body)
        return decoded

    async def is_busy(self) -> bool:
        """True if something runs or waits. Needs a server of a known kind."""
        assert self.kind is not None
        return n_busy(self.kind, await self.samples()) > 0

    async def is_idle(self) -> bool:
        return not await self.is_busy()

    def usages(self) -> dict[str, ProcessUsage]:
        """Measure what its processes use, by name."""
        found: dict[str, ProcessUsage] = {}
        for pid, name in self.processes.items():
            if (used := usage(pid)) is not None:
                found[name] = found.get(name, ProcessUsage()) + used
        return found

    def facts(self, serve_flags: list[str] | None = None) -> ServerFacts:
        return ServerFacts(
            name=self.name,
            url=self.target.url,
            kind=self.kind,
            version=self.version,
            model=self.model,
            extras=self.extras,
            serve_flags=serve_flags,
        )


async def meet(
    target: Target, *, name: str | None = None, model: str | None = None, pid: int | None = None
) -> TargetServer:
    """Ask a server what it is.

    `name` defaults to its kind. `pid` is its first process; a Sluiceway on this machine tells its processes itself.
    Raises `LoadError` if the server does not answer.
    """
    model = model or await _first_model(target)
    kind = kind_of(await _samples(target))
    return TargetServer(
        name=name or kind or target.url,
        target=target,
        model=model,
        kind=kind,
        version=await _version(target),
        extras=await _understood(target, model),
        processes=await _processes(target, kind, pid),
    )


async def _first_model(target: Target) -> str:
    reply = await get(target, "/v1/models")
    if reply.status != 200:
        raise LoadError(f"{target.url}/v1/models is refused ({reply.status}): {complaint(reply.body)}")
    try:
        models = msgspec.json.decode(reply.body, type=_Models).data
    except msgspec.DecodeError as fault:
        raise LoadError(f"{target.url}/v1/models is not a list of models: {fault}") from fault
    if not models:
        raise LoadError(f"the server at {target.url} lists no model; name one")
    return models[0].id


async def _samples(target: Target) -> Samples:
    return parse_samples((await _optional(target, "/metrics")).decode(errors="replace"))


async def _optional(target: Target, path: str) -> bytes:
    """Get an optional page. Return nothing if the server does not have it."""
    try:
        reply = await get(target, path)
    except LoadError:
        return b""
    return reply.body if reply.status == 200 else b""


async def _understood(target: Target, model: str) -> dict[str, Any]:
    """Return the largest set of `_EXTRAS` that the server accepts."""
    for extras in _EXTRAS:
        body = completion(model, "once", 1, extras)
        reply = (await record(target, target.request("POST", COMPLETIONS, body))).reply()
        if reply.status == 200:
            return extras
        if reply.status not in (400, 422):
            break
    raise LoadError(f"{target.url}{COMPLETIONS} is refused ({reply.status}): {complaint(reply.body)}")


async def _version(target: Target) -> str | None:
    """Ask for the version as vLLM and llama.cpp publish it."""
    for path, key in (("/version", "version"), ("/props", "build_info")):
        if said := _object(await _optional(target, path)).get(key):
            return str(said)
    return None


async def _processes(target: Target, kind: str | None, pid: int | None) -> dict[int, str]:
    named = {} if pid is None else family(pid)
    if pid is not None and not named:
        raise LoadError(f"there is no process {pid} on this machine")
    if kind == "sluiceway" and _is_here(target.host):
        roles = _object((await get(target, "/stats")).body).get("processes", {})
        named |= {number: role for role, number in roles.items()}
        if pid is not None:
            named[pid] = "supervisor"
    return named


def _object(raw: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _is_here(host: str) -> bool:
    """True if the process ids of the server are those of this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
