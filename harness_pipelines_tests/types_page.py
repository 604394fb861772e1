"""docs/reference/types.md as data, for the tests that hold it against the code and against the systems."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "docs/reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeRow:
    """What the page says of one type: of each place the first words in backticks."""

    type: str
    postgres: str
    iceberg: str
    spark: str
    arrow: str
    duckdb: str


def table_of(page: str, first: str) -> list[list[str]]:
    """The cells of the rows of the table of *page* whose head begins with *first*."""
    lines = (REFERENCE / page).read_text().splitlines()
    [start] = [i for i, line in enumerate(lines) if line.startswith(f"| {first} |")]
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def type_rows() -> list[TypeRow]:
    """All rows of the page."""
    rows = [[re.findall(r"`([^`]+)`", cell)[0] for cell in cells] for cells in table_of("types.md", "column")]
    names = ("type", "postgres", "iceberg", "spark", "arrow", "duckdb")
    return [TypeRow(**dict(zip(names, cells, strict=True))) for cells in rows]


def iceberg_name(text: str) -> str:
    """PyIceberg's name of a type without field ids."""
    return re.sub(r"\b\d+: |\boptional ", "", text)
