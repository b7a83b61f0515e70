"""The log has one line for each event, whatever is in its fields."""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Iterator

import pytest
import structlog

from sluiceway.obs.log import configure_log, log_fault


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    yield io.StringIO()
    structlog.reset_defaults()


def test_a_text_line_is_time_level_sentence_and_fields(stream: io.StringIO) -> None:
    """Numbers are short, simple words have no quotes, and everything else is quoted."""
    configure_log("info", "text", stream=stream, process="api")
    structlog.get_logger("api").info("finished", request_id="a-1", duration_s=0.123456789, reason="", n=3, first=None)
    time, rest = stream.getvalue().split(" ", 1)
    assert time.endswith("Z") and "T" in time
    assert rest == 'info finished process=api request_id=a-1 duration_s=0.123457 reason="" n=3 first=None\n'


def test_a_line_may_be_json(stream: io.StringIO) -> None:
    configure_log("info", "json", stream=stream, process="api")
    structlog.get_logger("api").warning("peer down", role="engine")
    line = json.loads(stream.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "peer down", "level": "warning", "process": "api", "role": "engine"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_client_cannot_forge_a_line(stream: io.StringIO, form: str) -> None:
    """Line ends of every kind and control sequences are escaped."""
    configure_log("info", "json" if form == "json" else "text", stream=stream, process="api")
    structlog.get_logger().info("rejected", model='x"\n2026 error forged\r\x1b[31m\u2028\u0085')
    assert stream.getvalue().endswith("\n")
    assert all(" " <= character <= "~" for character in stream.getvalue()[:-1])


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    configure_log("warning", "text", stream=stream, process="api")
    log = structlog.get_logger()
    log.info("quiet")
    log.warning("loud")
    assert "quiet" not in stream.getvalue() and "loud" in stream.getvalue()


def test_a_traceback_follows_its_line_and_is_escaped(stream: io.StringIO) -> None:
    """Its last line may quote a client."""
    configure_log("info", "text", stream=stream, process="api")
    try:
        raise ValueError("bad \x1b[31m é")
    except ValueError:
        structlog.get_logger().exception("request failed", path="/x")
    first, *traceback = stream.getvalue().splitlines()
    assert first.endswith("error request failed process=api path=/x")
    assert traceback[-1] == "ValueError: bad \\x1b[31m \\xe9"


def test_lines_go_to_standard_error_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is for the results of a command."""
    configure_log("info", "text", process="api")
    structlog.get_logger().info("hello")
    structlog.reset_defaults()
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.endswith("info hello process=api\n")


class _FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")


def test_a_log_that_cannot_be_written_is_ignored() -> None:
    """The disk may be full, or the reader of a pipe may have gone."""
    configure_log("info", "text", stream=_FullDisk(), process="api")
    structlog.get_logger().info("accepted")
    structlog.reset_defaults()


def test_a_missing_standard_error_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service manager may start a process with closed standard streams."""
    monkeypatch.setattr("sys.stderr", None)
    configure_log("info", "text", process="api")
    structlog.get_logger().info("accepted")
    structlog.reset_defaults()


def test_a_fault_is_one_line_with_its_location(stream: io.StringIO) -> None:
    """Even if its text is long, or if it was never raised."""
    configure_log("info", "text", process="tokenizer", stream=stream)
    log = structlog.get_logger("tokenizer")
    try:
        int("x" * 5000)
    except ValueError as error:
        log_fault(log, "a request failed", error, rid=7)
    log_fault(log, "a request failed", KeyError("a\nb"))
    first, second = stream.getvalue().splitlines()
    assert "a request failed" in first and "ValueError" in first and "rid=7" in first and "at=test_log.py:" in first
    assert len(first) < 600
    assert "KeyError" in second and "at=-" in second
