"""The use of pip, with a fake one; test_wheel.py uses a real pip."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluiceway.store import pip_child
from sluiceway.store.pip_child import PIP_IS_DIFFERENT, FetchErrorLog, choose, copy, main


@dataclass(frozen=True)
class Link:
    filename: str
    hash: str | None = None
    is_wheel: bool = True


@dataclass(frozen=True)
class Candidate:
    version: str
    link: Link


@dataclass
class Response:
    status_code: int = 200
    body: bytes = b"wheel"
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def raw(self) -> io.BytesIO:
        self._raw = getattr(self, "_raw", io.BytesIO(self.body))
        return self._raw

    def raise_for_status(self) -> None:
        if self.status_code >= 400:
            raise RuntimeError(f"status {self.status_code}\nof the index")


def test_link_with_the_pinned_checksum_is_chosen_first() -> None:
    """It comes before one without a checksum. Other versions, checksums and archives are not chosen."""
    right = Link("right", hash="aa")
    others = [
        Candidate("1.0", Link("sdist", hash="aa", is_wheel=False)),
        Candidate("2.0", Link("newer", hash="aa")),
        Candidate("1.0", Link("other", hash="bb")),
    ]
    unmarked = Candidate("1.0", Link("unmarked"))
    assert choose([*others, unmarked, Candidate("1.0", right)], "1.0", "aa") is right
    assert choose([*others, unmarked], "1.0", "aa") is unmarked.link
    assert choose(others, "1.0", "aa") is None


@pytest.mark.parametrize(("status", "start"), [(206, b"3\n"), (200, b"0\n")])
def test_start_is_the_offset_when_the_index_continues(status: int, start: bytes) -> None:
    """With 200 the body is the whole file."""
    out = io.BytesIO()
    copy(Response(status), 3, out)
    assert out.getvalue() == start + b"wheel"


def test_unreadable_pages_are_remembered() -> None:
    """Only the last such line of pip's log."""
    unfetched = FetchErrorLog()
    for text in ("Could not fetch URL %s: %s - skipping", "Skipping link: %s %s"):
        unfetched.emit(logging.LogRecord("pip", logging.DEBUG, "", 1, text, ("a", "b"), None))
    assert unfetched.last == "Could not fetch URL a: b"


class Seam:
    """Takes the place of pip."""

    found: tuple[Candidate, ...] = (Candidate("1.0", Link("w", hash="aa")),)
    response: Any = None
    asked: list[int]

    def context(self) -> nullcontext[None]:
        return nullcontext()

    def candidates(self, project: str) -> tuple[Candidate, ...]:
        return self.found

    def open(self, link: Link, offset: int) -> Any:
        return self.response


@pytest.fixture
def seam(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seam]:
    seam = Seam()
    monkeypatch.setattr(pip_child, "PipInternals", lambda: seam)
    logger = logging.getLogger("pip._internal.index.collector")
    before = list(logger.handlers), logger.level
    yield seam
    logger.handlers[:], logger.level = before


def test_main_sends_the_wheel(seam: Seam, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The status is 0, and stdout has only the protocol."""
    seam.response = Response(206)
    assert main(["tiny", "1.0", "aa", "7"]) == 0
    assert capfdbinary.readouterr().out == b"7\nwheel"


def test_main_says_what_the_index_lacks(seam: Seam, capsys: pytest.CaptureFixture[str]) -> None:
    """The reason is one line on stderr."""
    seam.found = ()
    assert main(["tiny", "1.0", "aa", "0"]) == 1
    assert capsys.readouterr().err == "the package index has no wheel of tiny 1.0 with sha256 aa\n"


def test_main_puts_a_failure_on_one_line(seam: Seam, capsys: pytest.CaptureFixture[str]) -> None:
    """The parent reads the last line of stderr."""
    seam.response = Response(404)
    assert main(["tiny", "1.0", "aa", "0"]) == 1
    assert capsys.readouterr().err == "RuntimeError: status 404 of the index\n"


def test_main_recognises_an_unsupported_pip(seam: Seam, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing attribute has a special exit status."""
    seam.response = object()
    assert main(["tiny", "1.0", "aa", "0"]) == PIP_IS_DIFFERENT
    assert "this version of pip is not supported" in capsys.readouterr().err
