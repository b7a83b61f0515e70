"""Writes the table of metrics in docs/observability.md from the code. `scripts/docs` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

from sluiceway.obs.metrics import Metrics, rows_of

_PAGE = Path(__file__).parents[2] / "docs" / "observability.md"
_HEAD = "| metric | type | meaning |\n|---|---|---|\n"


def page_with_table(page: str) -> str:
    """The page with a new table of metrics."""
    before, head, rest = page.partition(_HEAD)
    if not head:
        raise ValueError(f"{_PAGE} has no table of metrics")
    return before + head + metrics_table() + "\n" + rest.partition("\n\n")[2]


def metrics_table() -> str:
    """One line for each metric."""
    lines = []
    for row in rows_of(Metrics):
        kind = f"{row.kind}, by `{row.label}`" if row.label else row.kind
        lines.append(f"| `{row.scraped_name}` | {kind} | {row.meaning} {row.details}".rstrip() + " |\n")
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page_with_table(_PAGE.read_text()))
