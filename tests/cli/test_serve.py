"""`sluiceway serve`: from flags to a configuration, and what is refused before anything starts."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Annotated

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from sluiceway.cli.app import app
from sluiceway.cli.exits import flag_of
from sluiceway.cli.serve import serve_command
from sluiceway.config import Flag, ModelFiles, ModelKind, ServeConfig, StreamsConfig
from sluiceway.ranges import Range

FAKE = ModelFiles(kind=ModelKind.FAKE, path="", name="fake")

OTHER_VALUES: dict[str, object] = {
    "host": "127.0.0.2",
    "port": 0,
    "allowed_host": ("chat.example:443",),
    "dtype": "float32",
    "max_running": 3,
    "max_waiting": 4,
    "max_step_tokens": 5,
    "step_target_s": 0.25,
    "speculation": "ngram",
    "max_draft_tokens": 5,
    "max_model_len": 6,
    "kv_cache_tokens": 64,
    "drain_timeout_s": 1.5,
    "heartbeat_timeout_s": 2.5,
    "restart_hung_after_s": 45.0,
    "keep_alive_s": 3.5,
    "max_body_bytes": 4096,
    "threads": 1,
    "fake_step_s": 0.5,
    "log_level": "debug",
    "log_format": "json",
}
"""A value other than the default for every field, except the model and the streams."""

OF_STREAMS: dict[str, object] = {
    "slow_client": "drop",
    "sse_keep_alive_s": 2.5,
    "max_stream_bytes": 1000,
    "replay_bytes": 100,
    "replay_ttl_s": 3.5,
    "detach_grace_s": 4.5,
    "detach_ahead_tokens": 7,
    "history_ttl_s": 5.5,
    "unsent_bytes": 2048,
}
"""The same for the settings of streams that have a flag."""


class Started:
    """Takes the place of the supervisor: keeps the configurations and returns a status."""

    def __init__(self) -> None:
        self.configs: list[ServeConfig] = []
        self.status = 0

    def serve(self, config: ServeConfig, listener: socket.socket) -> int:
        assert listener.getsockname()[1] > 0, "bound, and not yet closed"
        self.configs.append(config)
        return self.status


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    started = Started()
    supervisor = SimpleNamespace(serve=started.serve)
    monkeypatch.setitem(sys.modules, "sluiceway.supervisor.supervisor", supervisor)
    return started


def serve(*arguments: str, **variables: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *arguments], env=variables)
    return result.exit_code, result.stderr


def written(value: object) -> str:
    """Write the value as on the command line."""
    return " ".join(value) if isinstance(value, tuple) else str(value)


def test_flag_may_come_several_times(started: Started) -> None:
    assert serve("fake", "--port=0", "--allowed-host", "a.example", "--allowed-host", "b.example") == (0, "")
    assert serve("fake", "--port=0", SLUICEWAY_ALLOWED_HOST="a.example b.example") == (0, "")
    assert [config.allowed_host for config in started.configs] == [("a.example", "b.example")] * 2
    assert serve("fake", "--port=0", "--allowed-host", "http://a")[0] == 2


def test_table_has_every_field() -> None:
    """A new field of the configuration needs a line in the table."""
    assert {*OTHER_VALUES, "model", "streams"} == {field.name for field in msgspec.structs.fields(ServeConfig)}


def test_defaults_are_those_of_the_configuration(started: Started) -> None:
    serve("fake", "--port", "0")
    assert started.configs == [ServeConfig(model=FAKE, port=0)]


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_every_field_has_a_flag(started: Started, field: str) -> None:
    """The flag sets only this field."""
    needed = {"max_step_tokens": {"max_running": 3}}.get(field, {}) | {"port": 0}
    values = {**needed, field: OTHER_VALUES[field]}
    arguments = [f"{flag_of(name)}={written(value)}" for name, value in values.items()]
    assert serve("fake", *arguments) == (0, "")
    assert started.configs == [msgspec.structs.replace(ServeConfig(model=FAKE), **values)]


@pytest.mark.parametrize("field", OTHER_VALUES)
def test_every_field_has_a_variable(started: Started, field: str) -> None:
    """Its name is `SLUICEWAY_` and that of the flag."""
    needed = {"max_step_tokens": {"max_running": 3}}.get(field, {}) | {"port": 0}
    values = {**needed, field: OTHER_VALUES[field]}
    variables = {
        "SLUICEWAY" + flag_of(name)[1:].replace("-", "_").upper(): written(value) for name, value in values.items()
    }
    assert serve("fake", **variables) == (0, "")
    assert started.configs == [msgspec.structs.replace(ServeConfig(model=FAKE), **values)]


@pytest.mark.parametrize("field", OF_STREAMS)
def test_field_of_the_streams_has_a_flag_and_a_variable(started: Started, field: str) -> None:
    """They set only this field."""
    flag, value = flag_of(field), str(OF_STREAMS[field])
    assert serve("fake", "--port=0", f"{flag}={value}") == (0, "")
    assert serve("fake", "--port=0", **{"SLUICEWAY" + flag[1:].replace("-", "_").upper(): value}) == (0, "")
    usual = ServeConfig(model=FAKE, port=0)
    streams = msgspec.structs.replace(usual.streams, **{field: OF_STREAMS[field]})
    assert started.configs == [msgspec.structs.replace(usual, streams=streams)] * 2


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("drop; drop_after_s=10; high_events=40", {"slow_client": "drop", "drop_after_s": 10, "high_events": 40}),
        ("pause; stall_timeout_s=300", {"slow_client": "pause"}),
    ],
)
def test_policy_has_its_marks_and_times_in_one_flag(started: Started, text: str, fields: dict[str, object]) -> None:
    """The form is that of the request header. Defaults are left to the policy."""
    assert serve("fake", "--port=0", "--slow-client", text) == (0, "")
    assert started.configs[0].streams == msgspec.structs.replace(StreamsConfig(), **fields)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("shout", "`policy` must name one of the policies unbounded, pause, drop, pause-park-drop."),
        ("pause; drop_after_s=1", "`policy.drop_after_s` means nothing in the policy pause."),
    ],
)
def test_wrong_policy_is_refused_before_anything_starts(started: Started, text: str, sentence: str) -> None:
    """The error lists the right values."""
    assert serve("fake", "--port=0", "--slow-client", text) == (2, f"error: --slow-client: {sentence}\n")
    assert started.configs == []


def test_a_flag_is_one_field_of_the_configuration(started: Started) -> None:
    """A new field has its flag, its variable, its default, its range and its help without another line of code."""

    class MoreConfig(ServeConfig, frozen=True, kw_only=True):
        nap_s: Annotated[float, Range(0, 60), Flag("Seconds that the server sleeps before it starts.")] = 0.5

    more = typer.Typer(rich_markup_mode=None)
    more.command("serve")(serve_command(MoreConfig))
    more.command("other")(lambda: None)
    runner = CliRunner()
    assert runner.invoke(more, ["serve", "fake", "--port=0", "--nap=2"]).exit_code == 0
    assert runner.invoke(more, ["serve", "fake", "--port=0"], env={"SLUICEWAY_NAP": "3"}).exit_code == 0
    assert runner.invoke(more, ["serve", "fake", "--port=0"]).exit_code == 0
    usual = MoreConfig(model=FAKE, port=0)
    assert started.configs == [msgspec.structs.replace(usual, nap_s=value) for value in (2.0, 3.0, 0.5)]
    refused = runner.invoke(more, ["serve", "fake", "--port=0", "--nap=61"])
    assert (refused.exit_code, refused.stderr) == (2, "error: --nap: must be from 0 to 60, not 61.0\n")
    text = " ".join(runner.invoke(more, ["serve", "--help"]).output.split())
    assert (
        "--nap <float> Seconds that the server sleeps before it starts. [env var: SLUICEWAY_NAP; default: 0.5]" in text
    )


def test_served_name_is_changed(started: Started) -> None:
    serve("fake", "--port", "0", "--served-model-name", "mine")
    assert started.configs[0].model == msgspec.structs.replace(FAKE, name="mine")


def test_exit_code_is_that_of_the_supervisor(started: Started) -> None:
    started.status = 1
    assert serve("fake", "--port", "0") == (1, "")


def test_wrong_setting_is_refused_before_the_model_is_searched(started: Started) -> None:
    """The error names the flag and its range, though the name of the model is wrong too."""
    assert serve("no such model", "--max-running", "0") == (
        2,
        "error: --max-running: must be from 1 to 4096, not 0\n",
    )
    assert started.configs == []


def test_unknown_model_is_refused(started: Started) -> None:
    """The exit code is 3, before anything starts."""
    code, sentence = serve("nix", "--port", "0")
    assert code == 3 and sentence.startswith("error: unknown model 'nix'")
    assert started.configs == []


def test_busy_port_is_refused(started: Started) -> None:
    """The error names the port and says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        expected = f"error: --port: {port} on 127.0.0.1 is in use; choose another one, or 0 for any free one\n"
        assert serve("fake", "--port", str(port)) == (2, expected)


def test_foreign_address_is_refused(started: Started) -> None:
    """192.0.2.1 is reserved for documentation."""
    code, sentence = serve("fake", "--host", "192.0.2.1")
    assert code == 2 and sentence.startswith("error: --host: 192.0.2.1 is not an address of this machine")


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (socket.gaierror(-2, "unknown"), "error: --host: '127.0.0.1' is neither an address nor a name"),
        (PermissionError(13, "denied"), "error: --port: 80 needs administrator rights; choose one above 1023"),
        (OSError(5, "Input/output error"), "error: --host: cannot listen on 127.0.0.1:80: Input/output error"),
    ],
)
def test_other_error_of_the_address_is_a_clear_error(
    started: Started, monkeypatch: pytest.MonkeyPatch, fault: OSError, sentence: str
) -> None:

    def refuse(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    code, message = serve("fake", "--port", "80")
    assert code == 2 and message.startswith(sentence)
