"""Reads the tables of states and inputs in module docstrings."""

from __future__ import annotations

import itertools


def table_in(doc: str | None, corner: str) -> dict[tuple[str, str], str]:
    """The cells of the table whose header begins with `corner`, by the words of their row and column; without "-"."""
    assert doc is not None
    lines = doc.splitlines()
    header = next(index for index, line in enumerate(lines) if line.split()[:1] == [corner] and "meaning" not in line)
    columns = lines[header].split()[1:]
    rows = itertools.takewhile(lambda line: not line.startswith("="), lines[header + 2 :])
    return {
        (row, column): cell
        for row, *cells in map(str.split, rows)
        for column, cell in zip(columns, cells, strict=True)
        if cell != "-"
    }
