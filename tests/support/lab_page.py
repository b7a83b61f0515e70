"""Writes docs/lab/README.md from the records in docs/lab/records. `scripts/docs` runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sluiceway_lab.experiments.experiment import Experiment
from sluiceway_lab.experiments.registry import experiments
from sluiceway_lab.load.record import Record

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "lab" / "records"
_WORDS = {True: "supported", False: "refuted", None: "open"}

_HEAD = """# The lab

`scripts/docs` writes this page from the [records](records). A test compares them.

The lab measures what Sluiceway claims about streams. Each experiment is a command. It starts its own server, runs,
prints a table, says which hypotheses the run supports, and writes a record.

```bash
sluiceway lab --list                                              # lists the experiments and their questions
sluiceway lab overlap --json overlap.json --plot overlap.png      # measures the default model
sluiceway lab overlap /models/mine.gguf                           # measures another model (as for `sluiceway serve`)
sluiceway lab sse --url http://127.0.0.1:8000                     # measures a running server, if no flags are compared
sluiceway lab overlap --smoke                                     # checks in seconds, on the fake model, that it works
```

A hypothesis is written down before the run, and only the run decides about it. A refuted hypothesis is a result, and
stays on this page; [LOG.md](LOG.md) says what followed. `open` means that the run cannot decide. Times are those
of one machine, whose name, load and versions are in each record. Another machine has other times, but the proportions
should be the same. With `--smoke`, nothing that depends on time is judged.

A record is one JSON object. `sluiceway bench` writes the same schema, `sluiceway.lab/2` (older records say
`sluiceway.lab/1`). It has the command, the commit, the host and its load before and after, versions, the seed, every
run, their summary, the verdicts, and what the run does not show.
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
    """Return the page, with a section for each record."""
    found = [
        (stem, record) for one in experiments() for stem in stems_of(one) if (record := record_of(stem)) is not None
    ]
    pages = ", ".join(f"[{name}]({name}.md)" for name in _PAGES)
    titles = [
        f"Experiments with their own page: {pages}.\n",
        "## Results\n",
        "| name | question | hypotheses supported | record |",
        "|---|---|---|---|",
    ]
    sections = [line for stem, record in found for line in _section(stem, record)]
    return "\n".join([_HEAD, *titles, *(_row(stem, record) for stem, record in found), *sections]) + "\n"


def stems_of(experiment: Experiment) -> tuple[str, str]:
    """Return the names that its records may have: with the default model, and with the fake one."""
    return experiment.name, f"{experiment.name}-fake"


def record_of(stem: str) -> Record | None:
    """Read the record of this name; None if there is none."""
    path = RECORDS / f"{stem}.json"
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else None


def _row(stem: str, record: Record) -> str:
    n_stood = sum(verdict.stood is True for verdict in record.verdicts)
    stood = f"{n_stood} of {len(record.verdicts)}"
    return f"| [`{stem}`](#{stem}) | {record.question} | {stood} | [JSON](records/{stem}.json) |"


def _section(stem: str, record: Record) -> Iterator[str]:
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
