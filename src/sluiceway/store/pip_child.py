"""Uses pip, in a separate process, to copy one wheel of the package index to stdout.

`python -m sluiceway.store.pip_child PROJECT VERSION SHA256 OFFSET` writes a line, START, and then the bytes of the
wheel from START on. START is OFFSET if the index can continue a download, else 0. The last line of stderr is the
reason of a failure.

It uses the session and the finder of pip because the user's pip configuration decides which index, mirror, proxy,
certificate and password to use, and only pip knows all the places of that configuration. They are in private modules,
since no public command continues an interrupted download. Their names have been the same since pip 19.3. If one has
changed, the exit status is `PIP_IS_DIFFERENT`, and the caller uses `pip download` instead.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Any, BinaryIO

PIP_IS_DIFFERENT = 3
CHUNK_BYTES = 256 * 1024


class PipInternals:
    """Wraps the four things of pip that are used: configured options, a session, candidates, and a response."""

    def __init__(self) -> None:
        module = importlib.import_module("pip._internal.commands.download")
        self._command: Any = module.DownloadCommand("download", "Download packages.")
        self._options, _ = self._command.parse_args(["--no-cache-dir", "--no-input", "--only-binary=:all:"])

    def context(self) -> Any:
        return self._command.main_context()

    def candidates(self, project: str) -> Sequence[Any]:
        self._session = self._command.get_default_session(self._options)
        finder = self._command._build_package_finder(options=self._options, session=self._session)
        found: Sequence[Any] = finder.find_all_candidates(project)
        return found

    def open(self, link: Any, offset: int) -> Any:
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        return self._session.get(link.url_without_fragment, headers=headers, stream=True)


def choose(candidates: Sequence[Any], version: str, sha256: str) -> Any:
    """Choose the wheel with this checksum, else a wheel of this version for which the index has no checksum."""
    wheels = [c.link for c in candidates if c.link.is_wheel and str(c.version) == version]
    exact = [link for link in wheels if link.hash == sha256]
    unmarked = [link for link in wheels if link.hash is None]
    return next(iter(exact + unmarked), None)


def copy(response: Any, offset: int, out: BinaryIO) -> None:
    """Write the offset at which the body starts, and the body."""
    response.raise_for_status()
    start = offset if response.status_code == 206 else 0
    out.write(f"{start}\n".encode())
    while chunk := response.raw.read(CHUNK_BYTES):
        out.write(chunk)
        out.flush()


class FetchErrorLog(logging.Handler):
    """Remembers why pip could not read a page of the index. Pip only logs it, and treats the page as empty."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("Could not fetch URL"):
            self.last = record.getMessage().removesuffix(" - skipping")

    def listen(self) -> None:
        pages = logging.getLogger("pip._internal.index.collector")
        pages.setLevel(logging.DEBUG)
        pages.addHandler(self)


def send_wheel(project: str, version: str, sha256: str, offset: int) -> str:
    """Send the wheel. Returns the reason if that failed, else an empty text."""
    pip = PipInternals()
    unfetched = FetchErrorLog()
    with pip.context():
        unfetched.listen()
        link = choose(pip.candidates(project), version, sha256)
        if link is None:
            return unfetched.last or f"the package index has no wheel of {project} {version} with sha256 {sha256}"
        copy(pip.open(link, offset), offset, sys.stdout.buffer)
    return ""


def main(arguments: Sequence[str]) -> int:
    project, version, sha256, offset = arguments
    try:
        reason, status = send_wheel(project, version, sha256, int(offset)), 1
    except (ImportError, AttributeError, TypeError) as error:
        reason, status = f"this version of pip is not supported: {error}", PIP_IS_DIFFERENT
    except Exception as error:  # pip's network errors have no public names
        reason, status = f"{type(error).__name__}: {error}", 1
    sys.stderr.write(reason.replace("\n", " ") + "\n")
    return status if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
