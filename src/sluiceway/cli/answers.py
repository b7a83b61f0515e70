"""Answers for a chat from a server that speaks the OpenAI protocol."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Protocol

import httpx
import msgspec

from sluiceway.errors import SluicewayError
from sluiceway.sse.decoder import EventDecoder
from sluiceway.store.proxies import proxy_for, without_password

Messages = Sequence[Mapping[str, str]]

CONNECT_S = 10.0
"""The limit for making a connection. The first text of an answer may take longer."""

_NO_REASON = "no reason given"
_HTML = "it sent a page of HTML, so this may not be the URL of a model server"


class Answers(Protocol):
    """Streams answers. Closing the generator cancels the answer. Raises `SluicewayError`."""

    def stream(self, messages: Messages) -> Generator[str, None, None]: ...


class AnswerError(SluicewayError):
    """The server could not be reached, refused the request, or ended the answer with an error."""


class _Delta(msgspec.Struct):
    content: str | None = None


class _ChatChoice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _ChatChunk(msgspec.Struct):
    choices: list[_ChatChoice] = []
    error: Any = None


class _ModelCard(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: list[_ModelCard]


class RemoteAnswers:
    """Gets answers from any server with `/v1/chat/completions`. Close it when done.

    `url` is its root, with or without `/v1`; without a scheme it means `http://`. A proxy that the environment names is
    used (`http_proxy`, `https_proxy`, `all_proxy`, `no_proxy`), but never for an address of this machine.
    """

    def __init__(self, url: str, *, model: str | None, api_key: str | None, parameters: Mapping[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        address = url if "://" in url else f"http://{url}"
        self._root = address.rstrip("/").removesuffix("/v1") + "/v1"
        self._proxy = proxy_for(self._root)
        self._client = _client(self._proxy, headers)
        self._parameters = parameters
        self._model = model

    def close(self) -> None:
        self._client.close()

    @property
    def model(self) -> str:
        """The model that answers: the one that was named, else the first that the server lists."""
        if self._model is None:
            self._model = self._first_model()
        return self._model

    def stream(self, messages: Messages) -> Generator[str, None, None]:
        body = {"model": self.model, "messages": list(messages), "stream": True, **self._parameters}
        try:
            with self._client.stream("POST", f"{self._root}/chat/completions", json=body) as response:
                self._require_success(response)
                yield from _pieces(response.iter_bytes())
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _first_model(self) -> str:
        try:
            response = self._client.get(f"{self._root}/models", timeout=CONNECT_S)
            self._require_success(response)
            cards = msgspec.json.decode(response.content, type=_ModelList).data
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        except msgspec.DecodeError as error:
            raise AnswerError(f"{self._root}/models is not a list of models: {error}") from error
        if not cards:
            raise AnswerError(f"the server at {self._root} lists no model; name one")
        return cards[0].id

    def _unreachable(self, error: Exception) -> AnswerError:
        through = f" through the proxy {without_password(self._proxy)}" if self._proxy else ""
        return AnswerError(f"no answer from {self._root}{through}: {error or type(error).__name__}")

    def _require_success(self, response: httpx.Response) -> None:
        if not response.is_success:
            response.read()
            complaint = _complaint(response.content)
            if response.status_code in (502, 504):  # from a proxy, on the way or in front of the server
                which = f", perhaps {without_password(self._proxy)}," if self._proxy else ""
                why = "does it run?" if complaint in (_HTML, _NO_REASON) else complaint
                raise AnswerError(f"a proxy{which} reached no server for {self._root} ({response.status_code}): {why}")
            who = f"the server, or the proxy {without_password(self._proxy)}," if self._proxy else "the server"
            raise AnswerError(f"{who} refused ({response.status_code}): {complaint}")


def _client(proxy: str | None, headers: Mapping[str, str]) -> httpx.Client:
    timeout = httpx.Timeout(None, connect=CONNECT_S)
    if proxy is None:  # a client with an explicit transport ignores the proxies of the environment
        return httpx.Client(headers=headers, timeout=timeout, transport=httpx.HTTPTransport())
    try:
        return httpx.Client(headers=headers, timeout=timeout, proxy=proxy)
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # of an unknown kind
        raise AnswerError(
            f"the proxy {without_password(proxy)}, which the environment names, cannot be used: {error}"
        ) from error


def _pieces(raw: Iterator[bytes]) -> Iterator[str]:
    """Yield the text of an event stream up to `[DONE]`. Raises `AnswerError` if it has an error or ends early."""
    decoder = EventDecoder()
    for chunk in raw:
        for event in decoder.feed(chunk):
            if event.data == "[DONE]":
                return
            yield from _text_of(event.data)
    raise AnswerError("the server broke off the answer")


def _text_of(data: str) -> Iterator[str]:
    try:
        chunk = msgspec.json.decode(data, type=_ChatChunk)
    except msgspec.DecodeError as error:
        raise AnswerError(f"the server sent an event that is not a completion: {error}") from error
    if chunk.error is not None:
        raise AnswerError(f"the server broke off the answer: {_message(chunk.error)}")
    for choice in chunk.choices:
        if choice.delta.content:
            yield choice.delta.content


def _complaint(body: bytes) -> str:
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError:
        text = " ".join(body[:200].decode(errors="replace").split())
        return _HTML if text[:1] == "<" else (text or _NO_REASON)
    return _message(decoded.get("error", decoded) if isinstance(decoded, dict) else decoded)


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
