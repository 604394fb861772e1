"""What `harness fsck` and the model ask of cuts, from their metadata alone: no data file is read.

The numbers are those of decision 0057. What the rows of the ledger show (F2, F5) is in `cut_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.cuts import CutBounds

#: `harness.freshness`: up to the newest row, the merged state of a keyed table, or that of a named snapshot.
FRESH, MERGED, NAMED = "fresh", "merged", "named"


class Finding(NamedTuple):
    """An invariant that does not hold, and how that shows."""

    invariant: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedData:
    """A data file as a manifest of the cut lists it."""

    path: str
    rows: int
    sequence: int  #: its data sequence number


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDeletes:
    """A position-delete file, and how many rows it hides of which data file."""

    path: str
    sequence: int
    hidden: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedCut:
    """A cut as its metadata file and manifests describe it."""

    snapshot_id: int
    sequence: int
    version: int
    bounds: CutBounds
    freshness: str
    data: tuple[ListedData, ...] = ()
    deletes: tuple[ListedDeletes, ...] = ()


def check_rows(cut: ListedCut, *, rows: int) -> Iterator[Finding]:
    """F1: rows of data files less hidden ones are the *rows* that the records below the bounds of the cut are."""
    data = sum(file.rows for file in cut.data)
    hidden = sum(sum(file.hidden.values()) for file in cut.deletes)
    if data - hidden != rows:
        yield Finding("F1", f"cut {cut.snapshot_id}: {data} rows, {hidden} hidden, its bounds have {rows}")


def check_deletes(cut: ListedCut) -> Iterator[Finding]:
    """F4: a delete file refers to data files of the cut, and is no older than they are, else it hides nothing."""
    live = {file.path: file for file in cut.data}
    for deletes in cut.deletes:
        for path in sorted(deletes.hidden):
            file = live.get(path)
            if file is None:
                yield Finding("F4", f"{deletes.path} hides rows of {path}, which cut {cut.snapshot_id} does not name")
            elif deletes.sequence < file.sequence:
                older = f"{deletes.path} of sequence {deletes.sequence}"
                yield Finding("F4", f"{older} hides nothing of {path} of sequence {file.sequence}")
            elif deletes.hidden[path] > file.rows:
                yield Finding("F4", f"{deletes.path} hides {deletes.hidden[path]} of the {file.rows} rows of {path}")


def check_freshness(cut: ListedCut, *, buffer_hi: Vector) -> Iterator[Finding]:
    """F9: a cut that ends below what its version knew of the buffer says that it is not fresh.

    *buffer_hi* is that of the version, so it is no more than that of the look.
    """
    behind = [p for p, b in sorted(cut.bounds.items()) if b[3] < max(b[2], buffer_hi.get(p, 0))]
    if behind and cut.freshness == FRESH:
        yield Finding("F9", f"cut {cut.snapshot_id} is behind in partition {behind[0]} and calls itself {FRESH}")
    if cut.freshness not in (FRESH, MERGED):
        yield Finding("F9", f"cut {cut.snapshot_id} does not say how fresh it is: {cut.freshness!r}")
