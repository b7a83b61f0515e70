"""Fetching models from a hub on the loopback interface: only the needed files, and checked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluiceway.errors import ModelSourceError
from sluiceway.model_files import SHARD_INDEX
from sluiceway.store import hub as hub_module
from sluiceway.store.hub import local_snapshot, pull_snapshot
from sluiceway.store.names import HubName
from support.hub_server import FILES, REPO, Hub, model_hub

NAME = HubName(repo=REPO)


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def endpoint(hub: Hub) -> Iterator[str]:
    with model_hub(hub) as root:
        yield root


def pull(name: HubName, cache: Path, endpoint: str) -> Path:
    return pull_snapshot(name, cache, show_bars=False, endpoint=endpoint)


def test_model_is_fetched_with_the_needed_files_only(hub: Hub, endpoint: str, tmp_path: Path) -> None:
    """Other formats and the description are not fetched."""
    folder = pull(NAME, tmp_path, endpoint)
    needed = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == needed
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert set(hub.fetched) == needed


def test_model_is_found_again_without_the_hub(endpoint: str, tmp_path: Path) -> None:
    """The cache is enough. Before the pull it is empty."""
    assert local_snapshot(NAME, tmp_path) is None
    folder = pull(NAME, tmp_path, endpoint)
    assert local_snapshot(NAME, tmp_path) == folder


def test_name_is_refused_when_the_hub_does_not_allow_it(tmp_path: Path) -> None:
    """The hub has more rules than the store checks."""
    with pytest.raises(ModelSourceError, match="org/tiny--model is not a name of a hub repository"):
        local_snapshot(HubName(repo="org/tiny--model"), tmp_path)


def test_one_gguf_file_is_fetched_when_it_is_named(hub: Hub, endpoint: str, tmp_path: Path) -> None:
    """The path is that of the file. Nothing else is fetched."""
    name = HubName(repo=REPO, file="tiny.gguf")
    file = pull(name, tmp_path, endpoint)
    assert file.name == "tiny.gguf" and file.read_bytes() == FILES["tiny.gguf"]
    assert hub.fetched == ["tiny.gguf"]
    assert local_snapshot(name, tmp_path) == file
    assert local_snapshot(NAME, tmp_path) is None, "a snapshot without the weights is not the model"


def test_all_parts_of_a_gguf_file_are_fetched_when_one_is_named(hub: Hub, endpoint: str, tmp_path: Path) -> None:
    """The name may be that of any part. The path is that of the first."""
    parts = [f"q4/tiny-0000{n}-of-00002.gguf" for n in (1, 2)]
    hub.files |= {part: b"GGUF" + part.encode() for part in parts}
    name = HubName(repo=REPO, file=parts[1])
    file = pull(name, tmp_path, endpoint)
    assert file.name == "tiny-00001-of-00002.gguf"
    assert sorted(hub.fetched) == parts
    assert local_snapshot(name, tmp_path) == file
    del hub.files[parts[0]]
    with pytest.raises(ModelSourceError, match=f"has no file {parts[0]}"):
        pull(name, tmp_path / "elsewhere", endpoint)


@pytest.mark.parametrize("damaged", ["model.safetensors", "config.json"])
def test_damaged_file_is_removed_and_fetched_again(hub: Hub, endpoint: str, tmp_path: Path, damaged: str) -> None:
    """Large files are checked by sha256, small ones by git blob id."""
    hub.damaged = damaged
    with pytest.raises(ModelSourceError, match=f"{damaged} was damaged"):
        pull(NAME, tmp_path, endpoint)
    assert local_snapshot(NAME, tmp_path) is None
    hub.damaged = None
    assert (pull(NAME, tmp_path, endpoint) / damaged).read_bytes() == FILES[damaged]


def test_repository_without_safetensors_is_refused_before_the_download(hub: Hub, endpoint: str, tmp_path: Path) -> None:
    """The error names a GGUF file of the repository."""
    del hub.files["model.safetensors"]
    with pytest.raises(ModelSourceError, match=f"no safetensors weights; name one of its GGUF files: {REPO}:tiny.gguf"):
        pull(NAME, tmp_path, endpoint)
    del hub.files["tiny.gguf"]
    with pytest.raises(ModelSourceError, match="no safetensors weights$"):
        pull(NAME, tmp_path, endpoint)
    assert hub.fetched == []


def test_missing_gguf_file_is_refused(endpoint: str, tmp_path: Path) -> None:
    """The error lists the files of the repository."""
    with pytest.raises(ModelSourceError, match=r"has no file big\.gguf; its GGUF files: tiny\.gguf"):
        pull(HubName(repo=REPO, file="big.gguf"), tmp_path, endpoint)


def test_incomplete_repository_is_refused(hub: Hub, endpoint: str, tmp_path: Path) -> None:
    """Its index names a shard that it does not have."""
    hub.files["part.safetensors"] = hub.files.pop("model.safetensors")
    hub.files[SHARD_INDEX] = json.dumps({"weight_map": {"x": "gone.safetensors", "y": "part.safetensors"}}).encode()
    with pytest.raises(ModelSourceError, match=r"is incomplete: it lacks gone\.safetensors"):
        pull(NAME, tmp_path, endpoint)


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [
        (404, "RepoNotFound", "the hub has no repository org/tiny, or it is private and needs HF_TOKEN"),
        (403, "GatedRepo", "org/tiny is gated: accept its terms on the hub and set HF_TOKEN"),
        (404, "RevisionNotFound", "org/tiny has no revision v9"),
    ],
)
def test_refusal_of_the_hub_is_a_clear_error(
    hub: Hub, endpoint: str, tmp_path: Path, status: int, code: str, sentence: str
) -> None:
    """It says what to do, if possible."""
    hub.info_status, hub.error_code = status, code
    with pytest.raises(ModelSourceError, match=sentence):
        pull(HubName(repo=REPO, revision="v9"), tmp_path, endpoint)


def test_error_of_an_unreachable_hub_has_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelSourceError, match=r"the model hub cannot be reached \(.*refused"):
        pull(NAME, tmp_path, "http://127.0.0.1:9")


def test_proxy_is_named_when_the_hub_is_asked_through_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The proxy may be unreachable. Its password is not shown."""
    monkeypatch.setenv("http_proxy", "http://me:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(ModelSourceError, match=r"cannot be reached through the proxy 127\.0\.0\.1:9 \(") as caught:
        pull(NAME, tmp_path, "http://hub.invalid")
    assert "secret" not in str(caught.value)


def test_silent_hub_is_a_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The thread that waits is abandoned, for example while it resolves a name."""
    import huggingface_hub

    is_over = threading.Event()

    class Silent:
        def __init__(self, endpoint: str | None) -> None:
            """Take the arguments of the real class."""

        def model_info(self, *args: object, **kwargs: object) -> None:
            is_over.wait(30)

    monkeypatch.setattr(huggingface_hub, "HfApi", Silent)
    monkeypatch.setattr(hub_module, "REACH_S", 0.05)
    with pytest.raises(ModelSourceError, match=r"no answer within 0\.05 s"):
        pull(NAME, tmp_path, "http://127.0.0.1:9")
    is_over.set()


def test_download_that_fails_is_a_clear_error(hub: Hub, endpoint: str, tmp_path: Path) -> None:
    """The cache cannot be written."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelSourceError, match="cannot write in"):
        pull(NAME, tmp_path / "file", endpoint)


def test_unexpected_error_of_the_client_is_a_clear_error(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises the errors of its HTTP library."""
    import huggingface_hub

    def break_off(*args: object, **kwargs: object) -> str:
        raise RuntimeError("the connection was reset\nby the other side")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", break_off)
    with pytest.raises(ModelSourceError, match=r"cannot be reached \(the connection was reset\)"):
        pull(NAME, tmp_path, endpoint)
