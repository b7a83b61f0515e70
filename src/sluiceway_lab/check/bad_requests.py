"""Asks whether invalid requests are refused with a reason that names the field, on a connection that stays open."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from sluiceway_lab.check.context import CheckContext
from sluiceway_lab.check.question import Finding, Question, by_faults
from sluiceway_lab.load.client import Connection, LoadError, Reply, Target, keeping
from sluiceway_lab.load.record import Grade
from sluiceway_lab.load.workload import long_prompt

_PATH = "/v1/completions"
_TOO_MANY_WORDS = 150_000


@dataclass(frozen=True, slots=True)
class _Wrong:
    """An invalid request. `field` is what the reason should name; None if no field is at fault."""

    what: str
    body: bytes
    field: str | None


async def _ask(context: CheckContext) -> Finding:
    wrongs = list(_wrongs(context))
    faults: dict[str, list[str]] = {}
    blemishes: dict[str, list[str]] = {}
    connection = _ReopeningConnection(context)
    with contextlib.closing(connection):
        for wrong in wrongs:
            try:
                said = judge(wrong.field, await connection.ask(wrong.body))
            except LoadError as fault:
                said = (Grade.FAIL, str(fault))
            if said is not None:
                (faults if said[0] is Grade.FAIL else blemishes).setdefault(said[1], []).append(wrong.what)
    (prompt,) = context.prompts("bad-requests", 1)
    await context.plain(prompt, 1)
    lost = [f"{connection.n_lost} times the connection was closed after a refusal"] if connection.n_lost else []
    praise = f"{len(wrongs)} wrong requests on one connection, each refused with a reason"
    return by_faults(_told(faults), _told(blemishes) + lost, praise)


def _told(found: dict[str, list[str]]) -> list[str]:
    return [f"{fault}: {', '.join(whats)}" for fault, whats in found.items()]


def judge(field: str | None, reply: Reply) -> tuple[Grade, str] | None:
    """Return what is wrong with the answer to an invalid request; None if nothing is."""
    if reply.status >= 500:
        return Grade.FAIL, f"status {reply.status}, as if it were the server's fault"
    if reply.status < 400:
        return Grade.WARN, "served as if nothing were wrong"
    error = _error(reply.body)
    if error is None:
        return Grade.FAIL, f"status {reply.status} without a JSON error"
    if field is not None and field not in f"{error.get('param')} {error.get('message')}":
        return Grade.WARN, "the reason does not name the field"
    return None


def _error(body: bytes) -> dict[str, Any] | None:
    """Return the error, in OpenAI's envelope or without it, as some servers send it."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    error = decoded.get("error", decoded) if isinstance(decoded, dict) else None
    return error if isinstance(error, dict) and error.get("message") else None


def _wrongs(context: CheckContext) -> Iterator[_Wrong]:
    fine = {"model": context.server.model, "prompt": "Once", "max_tokens": 1, "temperature": 0}

    def with_field(**fields: Any) -> bytes:
        return msgspec.json.encode({name: value for name, value in (fine | fields).items() if value is not None})

    yield _Wrong("broken JSON", b'{"model": ', None)
    yield _Wrong("a list", b"[1, 2]", None)
    yield _Wrong("no prompt", with_field(prompt=None), "prompt")
    yield _Wrong("max_tokens that is a word", with_field(max_tokens="many"), "max_tokens")
    yield _Wrong("temperature that is a list", with_field(temperature=[1]), "temperature")
    yield _Wrong("temperature -1", with_field(temperature=-1), "temperature")
    yield _Wrong("an unknown model", with_field(model="no/such-model"), "no/such-model")
    yield _Wrong("a prompt that is too long", with_field(prompt=long_prompt(0, "too-long", _TOO_MANY_WORDS)), None)


class _ReopeningConnection:
    """A connection that is opened again after the server has closed it. It counts how often."""

    def __init__(self, context: CheckContext) -> None:
        self._context = context
        self._line: Connection | None = None
        self.n_lost = 0

    async def ask(self, body: bytes) -> Reply:
        """Raises `LoadError` if even a fresh connection brings no answer."""
        if self._line is not None:
            try:
                return await self._ask_on(self._line, body)
            except LoadError:
                self.close()
                self.n_lost += 1
        self._line = await Connection.open(self._context.server.target)
        try:
            return await self._ask_on(self._line, body)
        except LoadError:
            self.close()
            raise

    def close(self) -> None:
        if self._line is not None:
            self._line.finish()
        self._line = None

    async def _ask_on(self, connection: Connection, body: bytes) -> Reply:
        connection.send(post(self._context.server.target, body))
        return await connection.read_reply(self._context.limit_s)


def post(target: Target, body: bytes) -> bytes:
    """Return a request with this body, for a connection that stays open."""
    return keeping(target.request("POST", _PATH, body))


QUESTION = Question("bad-requests", "Is an invalid request refused with a reason, and the connection kept?", _ask)
