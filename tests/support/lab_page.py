"""Writes docs/lab/README.md from the records beside it: `scripts/docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sluiceway_lab.experiments.experiment import Experiment, LabRecord
from sluiceway_lab.experiments.registry import experiments

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "lab" / "records"
_WORDS = {True: "stood", False: "fell", None: "open"}

_HEAD = """# The lab

This page is written by `scripts/docs` from the [records](records); a test compares them.

What Sluiceway claims about streams, measured. Each experiment is a command that starts a server of its own, runs,
prints a table, says of each hypothesis whether it stood or fell, and writes one record.

```bash
sluiceway lab --list                                              # which there are, and what each asks
sluiceway lab overlap --json overlap.json --plot overlap.png      # of the default model
sluiceway lab overlap /models/mine.gguf                           # of another, as for `sluiceway serve`
sluiceway lab sse --url http://127.0.0.1:8000                     # of a server that runs; not where flags are compared
sluiceway lab overlap --smoke                                     # in seconds on the fake model: that it works
```

A hypothesis is written down before the run and judged by the run alone. One that falls is a result, and stays on this
page; [LOG.md](LOG.md) tells what was made of it. `open` means that this run cannot tell. Times are those of one
machine, whose name, load and versions are in each record, and say little about another; the shapes should hold there
too. Under `--smoke` nothing that depends on time is judged.

A record is one JSON object in the schema `sluiceway.lab/1`, the same as that of `sluiceway bench`: command, commit,
host and its load before and after, versions, seed, every single run, their summary, and here also the verdicts and
what the run does not show.
"""


_PAGES = (
    "buffers",
    "slow-client",
    "full-batch",
    "disconnect",
    "leak",
    "keep-alive",
    "resume",
    "eager",
    "paged-kernel",
)


def page() -> str:
    """The whole page: what came of every experiment that has a record."""
    found = [
        (stem, record) for one in experiments() for stem in stems_of(one) if (record := record_of(stem)) is not None
    ]
    pages = ", ".join(f"[{name}]({name}.md)" for name in _PAGES)
    titles = [
        f"Pages of their own: {pages}.\n",
        "## Results\n",
        "| name | question | hypotheses that stood | record |",
        "|---|---|---|---|",
    ]
    sections = [line for stem, record in found for line in _section(stem, record)]
    return "\n".join([_HEAD, *titles, *(_row(stem, record) for stem, record in found), *sections]) + "\n"


def stems_of(experiment: Experiment) -> tuple[str, str]:
    """The names of its records: of the default model, and of the fake one where that can show what the other cannot."""
    return experiment.name, f"{experiment.name}-fake"


def record_of(stem: str) -> LabRecord | None:
    """That of the last run that was kept, if any was."""
    path = RECORDS / f"{stem}.json"
    return msgspec.json.decode(path.read_bytes(), type=LabRecord) if path.exists() else None


def _row(stem: str, record: LabRecord) -> str:
    n_stood = sum(verdict.stood is True for verdict in record.verdicts)
    stood = f"{n_stood} of {len(record.verdicts)}"
    return f"| [`{stem}`](#{stem}) | {record.question} | {stood} | [JSON](records/{stem}.json) |"


def _section(stem: str, record: LabRecord) -> Iterator[str]:
    host, command = record.host, record.experiment + (" fake" if stem != record.experiment else "")
    yield f"\n## {stem}\n\n{record.question}\n"
    yield (
        f"`sluiceway lab {command}`, {record.started_at[:10]}, {host.cpu}, {host.cores} cores (load before it "
        f"{host.load_before:.1f}), commit `{(record.git_sha or 'unknown')[:9]}`, {record.duration_s:.0f} s.\n"
    )
    yield "| hypothesis | | what was seen |\n|---|---|---|"
    for verdict in record.verdicts:
        yield f"| {verdict.hypothesis} | {_WORDS[verdict.stood]} | {verdict.sentence} |"
    if (RECORDS / f"{stem}.png").exists():
        yield f"\n![{record.question}](records/{stem}.png)"
    if record.not_shown:
        yield f"\nNot shown: {'; '.join(record.not_shown)}."


if __name__ == "__main__":
    sys.stdout.write(page())
