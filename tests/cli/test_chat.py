"""`sluiceway chat`: piped, on a terminal, with a model of this process and with a server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.errors import SluicewayError
from support import chat_server as chat_servers
from support.chat_server import DONE, chat_server, delta
from support.offline_llm import Script, script_llm
from support.terminal import CTRL_D, terminal

COMMAND = [sys.executable, "-m", "sluiceway", "chat"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return script_llm(monkeypatch)


@pytest.fixture
def server() -> chat_servers.Script:
    return chat_servers.Script()


@pytest.fixture
def url(server: chat_servers.Script) -> Iterator[str]:
    with chat_server(server) as root:
        yield root


def test_piped_lines_are_questions(script: Script) -> None:
    """Only the answers are on stdout, one on each line."""
    result = CliRunner().invoke(app, ["chat", "fake", "--system", "be brief"], input="first\nsecond\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one two\none two\n", "loading fake\n")
    contents = [[turn["content"] for turn in messages] for messages, _, _ in script.asked]
    assert contents == [["be brief", "first"], ["be brief", "first", "one two", "second"]]
    assert script.closed == 1


def test_flags_reach_the_model(script: Script) -> None:
    """Those of sampling and those of the engine."""
    flags = "--temperature 0 --top-p 0.5 --seed 7 --max-tokens 3 --dtype float32 --threads 2 --kv-cache-tokens 64"
    CliRunner().invoke(app, ["chat", "fake", *flags.split()], input="x\n")
    sampling, settings = script.asked[0][1], script.opened[0][1]
    assert sampling is not None
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.0, 0.5, 7, 3)
    assert settings == {"dtype": "float32", "threads": 2, "kv_cache_tokens": 64, "on_load": None}


def test_failed_answer_is_an_exit_code_when_lines_are_piped(script: Script) -> None:
    """The other lines are answered."""
    script.fault = SluicewayError("it broke")
    result = CliRunner().invoke(app, ["chat", "fake"], input="first\nsecond\n")
    assert result.exit_code == 1
    assert result.stderr.count("error: it broke") == 2


def test_server_is_asked_when_a_url_is_given(server: chat_servers.Script, url: str) -> None:
    """It is asked for its first model, with the given flags. No model is loaded here."""
    server.answers = [[delta("one"), DONE]]
    result = CliRunner().invoke(app, ["chat", "--url", url, "--max-tokens", "5"], input="hello\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "one\n", f"first at {url}\n")
    assert server.bodies == [
        {
            "model": "first",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "temperature": 0.7,
            "top_p": 1.0,
            "max_tokens": 5,
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "variables", "asked"),
    [
        ([], {"SLUICEWAY_MODEL": "smollm2-135m"}, "first"),
        ([], {"SLUICEWAY_MODEL": "smollm2-135m", "SLUICEWAY_URL_MODEL": "theirs"}, "theirs"),
        (["mine"], {"SLUICEWAY_URL_MODEL": "theirs"}, "mine"),
    ],
)
def test_servers_name_of_the_model_has_a_variable_of_its_own(
    server: chat_servers.Script, url: str, arguments: list[str], variables: dict[str, str], asked: str
) -> None:
    """SLUICEWAY_MODEL is for a model that this program loads."""
    server.answers = [[delta("one"), DONE]]
    CliRunner().invoke(app, ["chat", *arguments, "--url", url], input="hello\n", env=variables)
    assert [body["model"] for body in server.bodies] == [asked]


def test_unreachable_server_is_a_clear_error() -> None:
    """The exit code is 1, before the first question."""
    result = CliRunner().invoke(app, ["chat", "--url", "http://127.0.0.1:9"], input="hello\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: no answer from http://127.0.0.1:9/v1")


def test_interrupt_cancels_the_answer_on_a_terminal(server: chat_servers.Script, url: str) -> None:
    """The shown text is part of the next request."""
    server.answers = [[delta("one"), None, delta("never")], [delta("two"), DONE]]
    with terminal([*COMMAND, "--url", url], os.environ) as screen:
        screen.wait_for("> ")
        screen.press("first\r")
        screen.wait_for("one")
        screen.interrupt("(cancelled; Ctrl-C again leaves)")
        screen.wait_for("> ")
        screen.press("go on\r")
        screen.wait_for("two")
        screen.wait_for("> ")
        screen.press(CTRL_D)
        assert screen.wait_for_end() == 0
    assert [turn["content"] for turn in server.bodies[1]["messages"]] == ["first", "one", "go on"]
    assert "never" not in screen.screen and "Traceback" not in screen.screen


def test_second_interrupt_leaves_the_terminal(server: chat_servers.Script, url: str) -> None:
    """The first one at the prompt says that the second leaves."""
    with terminal([*COMMAND, "--url", url], os.environ) as screen:
        screen.wait_for("> ")
        screen.interrupt("(Ctrl-C again, or Ctrl-D, leaves)")
        screen.wait_for("> ")
        screen.interrupt()
        assert screen.wait_for_end() == 0
    assert "Traceback" not in screen.screen


def test_filters_reach_the_server_when_they_are_given(server: chat_servers.Script, url: str) -> None:
    """Other filters are not sent, because other servers may not know them."""
    server.answers = [[delta("one"), DONE]]
    CliRunner().invoke(app, ["chat", "--url", url, "--top-k", "5", "--stop", "a", "--stop", "b"], input="hello\n")
    (body,) = server.bodies
    assert (body["top_k"], body["stop"]) == (5, ["a", "b"])
    assert not {"min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed"} & body.keys()


def test_lines_pasted_at_a_terminal_are_one_question(server: chat_servers.Script, url: str) -> None:
    server.answers = [[delta("one"), DONE]]
    with terminal([*COMMAND, "--url", url], os.environ) as screen:
        screen.wait_for("> ")
        screen.press("first\rsecond\r")
        screen.wait_for("one")
        screen.wait_for("> ")
        screen.press(CTRL_D)
        assert screen.wait_for_end() == 0
    assert [turn["content"] for turn in server.bodies[0]["messages"]] == ["first\nsecond"]
    assert screen.screen.endswith("\n")


@pytest.mark.parametrize(
    "flags",
    [
        ["--url", "http://127.0.0.1:9", "--dtype", "int8"],
        ["--url", "http://127.0.0.1:9", "--threads", "1"],
        ["--url", "http://127.0.0.1:9", "--kv-cache-tokens", "64"],
        ["--url", "http://127.0.0.1:9", "--source", "hub"],
        ["fake", "--api-key", "secret"],
    ],
)
def test_flag_without_effect_is_refused(script: Script, flags: list[str]) -> None:
    """The exit code is 2, and the flag is named."""
    result = CliRunner().invoke(app, ["chat", *flags], input="x\n")
    assert result.exit_code == 2 and result.stderr.startswith(f"error: {flags[-2]}: has no effect with")
    assert not script.opened


def test_variable_without_effect_is_ignored(server: chat_servers.Script, url: str) -> None:
    """It may be set for other commands."""
    server.answers = [[delta("one"), DONE]]
    result = CliRunner().invoke(app, ["chat", "--url", url], input="x\n", env={"SLUICEWAY_THREADS": "1"})
    assert (result.exit_code, result.stdout) == (0, "one\n")


def test_empty_url_is_an_error(script: Script) -> None:
    """Otherwise a model of this machine would answer instead of a server."""
    result = CliRunner().invoke(app, ["chat", "--url", ""], input="x\n")
    assert result.exit_code == 1 and "no answer from" in result.stderr
    assert not script.opened
