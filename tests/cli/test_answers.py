"""Answers of a server that speaks the OpenAI protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from sluiceway.cli.answers import AnswerError, RemoteAnswers
from support.chat_server import DONE, Script, chat_server, delta

QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def root(script: Script) -> Iterator[str]:
    with chat_server(script) as root:
        yield root


@contextlib.contextmanager
def asking(url: str, model: str | None = "tiny", api_key: str | None = None) -> Iterator[RemoteAnswers]:
    with contextlib.closing(RemoteAnswers(url, model=model, api_key=api_key, parameters={"seed": 7})) as answers:
        yield answers


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_answer_comes_in_pieces(script: Script, root: str, suffix: str) -> None:
    """It has only text, no empty pieces or comments. The URL may end in any usual way."""
    script.answers = [[": beat\n\n", delta("one "), 'data: {"choices": []}\n\n', delta(""), delta("two"), DONE]]
    with asking(root + suffix) as answers:
        assert list(answers.stream(QUESTION)) == ["one ", "two"]
    assert script.bodies == [{"model": "tiny", "messages": QUESTION, "stream": True, "seed": 7}]
    assert script.keys == [None]


def test_url_without_a_scheme_means_http(script: Script, root: str) -> None:
    with asking(root.removeprefix("http://"), model=None) as answers:
        assert answers.model == "first"


def test_key_is_sent_when_there_is_one(script: Script, root: str) -> None:
    script.answers = [[DONE]]
    with asking(root, api_key="secret") as answers:
        assert list(answers.stream(QUESTION)) == []
    assert script.keys == ["Bearer secret"]


def test_first_model_of_the_server_answers_by_default(script: Script, root: str) -> None:
    """The list of models is requested once."""
    with asking(root, model=None) as answers:
        assert answers.model == answers.model == "first"


@pytest.mark.parametrize(
    ("models", "sentence"), [(b'{"data": []}', "lists no model; name one"), (b"<html>", "is not a list of models")]
)
def test_server_without_models_is_a_clear_error(script: Script, root: str, models: bytes, sentence: str) -> None:
    """As with an empty list, or with another kind of server."""
    script.models = models
    with asking(root, model=None) as answers, pytest.raises(AnswerError, match=sentence):
        assert answers.model


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "no such model"}}', "no such model"),
        (b'{"detail": "no"}', r"\{'detail': 'no'\}"),
        (b'"no"', "no"),
        (b"plain\n words", "plain words"),
        (b"<!DOCTYPE html>\n<p>", "it sent a page of HTML, so this may not be the URL of a model server$"),
        (b"", "no reason given"),
    ],
)
def test_refusal_has_the_text_of_the_server(script: Script, root: str, body: bytes, reason: str) -> None:
    """Whatever the form of the body is."""
    script.refusal = (404, body)
    with asking(root) as answers, pytest.raises(AnswerError, match=rf"refused \(404\): {reason}"):
        list(answers.stream(QUESTION))


@pytest.mark.parametrize("status", [502, 504])
@pytest.mark.parametrize(
    ("body", "why"),
    [(b"<html>Bad Gateway", "does it run?"), (b"", "does it run?"), (b'{"error": {"message": "busy"}}', "busy")],
)
def test_proxy_that_reaches_no_server_is_named(script: Script, root: str, status: int, body: bytes, why: str) -> None:
    """The proxy may have written the page itself, so it does not show that the URL is wrong."""
    script.refusal = (status, body)
    with asking(root) as answers, pytest.raises(AnswerError) as caught:
        list(answers.stream(QUESTION))
    assert str(caught.value) == f"a proxy reached no server for {root}/v1 ({status}): {why}"


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        ([], "the server broke off the answer$"),
        (['data: {"error": {"message": "slow client"}}\n\n'], "broke off the answer: slow client"),
        (["data: nonsense\n\n"], "an event that is not a completion"),
    ],
)
def test_broken_answer_keeps_its_pieces(script: Script, root: str, end: list[str], sentence: str) -> None:
    """The pieces before the error are passed on, and then the error."""
    script.answers = [[delta("one"), *end]]
    with asking(root) as answers:
        pieces = answers.stream(QUESTION)
        assert next(pieces) == "one"
        with pytest.raises(AnswerError, match=sentence):
            next(pieces)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "gopher://127.0.0.1:9"])
def test_unreachable_server_is_a_clear_error(url: str) -> None:
    """As when no server listens there, or one of another protocol."""
    with asking(url) as answers, pytest.raises(AnswerError, match=f"no answer from {url}/v1"):
        list(answers.stream(QUESTION))
    with asking(url, model=None) as answers, pytest.raises(AnswerError, match=f"no answer from {url}/v1"):
        assert answers.model


# Proxies.

NOWHERE = "http://127.0.0.1:9"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Set no proxies but those of the test."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_server_of_this_machine_is_asked_without_a_proxy(
    proxied: pytest.MonkeyPatch, script: Script, root: str, name: str, host: str
) -> None:
    """Whatever the environment says."""
    proxied.setenv(name, NOWHERE)
    with asking(root.replace("127.0.0.1", host), model=None) as answers:
        assert answers.model == "first"


def test_proxy_is_asked_for_other_servers(proxied: pytest.MonkeyPatch, script: Script, root: str) -> None:
    """The scripted server is the proxy."""
    proxied.setenv("http_proxy", root.removeprefix("http://"))
    with asking("http://model.invalid", model=None) as answers, pytest.raises(AnswerError) as caught:
        assert answers.model
    proxy = root.removeprefix("http://")
    assert str(caught.value).startswith(f"the server, or the proxy {proxy}, refused (404)")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_unreachable_proxy_is_named(proxied: pytest.MonkeyPatch, scheme: str) -> None:
    """Its password is not shown."""
    proxied.setenv("all_proxy", "http://me:secret@127.0.0.1:9")
    sentence = f"no answer from {scheme}://model.invalid/v1 through the proxy 127.0.0.1:9: .*refused"
    with asking(f"{scheme}://model.invalid") as answers, pytest.raises(AnswerError, match=sentence):
        list(answers.stream(QUESTION))


@pytest.mark.parametrize("exempt", ["*", "model.invalid", ".invalid", "other,model.invalid:80"])
def test_proxy_is_left_out_when_the_environment_exempts_the_server(proxied: pytest.MonkeyPatch, exempt: str) -> None:
    """By `no_proxy`, in its usual forms. Without a proxy the name is not found."""
    proxied.setenv("http_proxy", NOWHERE)
    proxied.setenv("no_proxy", exempt)
    with asking("http://model.invalid:80") as answers, pytest.raises(AnswerError) as caught:
        list(answers.stream(QUESTION))
    assert "proxy" not in str(caught.value)


def test_proxy_of_an_unknown_kind_is_a_clear_error(proxied: pytest.MonkeyPatch) -> None:
    proxied.setenv("all_proxy", "gopher://127.0.0.1:9")
    with pytest.raises(AnswerError, match=r"the proxy 127\.0\.0\.1:9, which the environment names, cannot be used"):
        RemoteAnswers("http://model.invalid", model="m", api_key=None, parameters={})


@pytest.mark.parametrize("url", ["http://[::1", "http://a b", "http://x:port", "http://", "http://127.0.0.1:99999"])
def test_invalid_url_is_a_clear_error(proxied: pytest.MonkeyPatch, url: str) -> None:
    """With and without a proxy."""
    for proxy in ("", NOWHERE):
        proxied.setenv("http_proxy", proxy)
        with pytest.raises(AnswerError, match="no answer from"), asking(url, model=None) as answers:
            assert answers.model
