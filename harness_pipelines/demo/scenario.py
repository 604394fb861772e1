"""A demo scenario: a table, its records, and the expected final state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.spec.settings import EngineWord
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.demo.truth import Truth
    from harness_pipelines.demo.verify import Verdict

PARTITIONS = 4
MOVE_ROWS_MAX = 100_000
REGIONS = 24  #: of the batch view; of megabytes each, so that a small table has a picture

Ints = NDArray[np.int64]
Record = tuple[bytes | None, bytes | None]  #: key and value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Log:
    """The records that the producer sends; all of them are known before the first one is sent."""

    rows: pa.Table  #: one per record: the user's columns, and what else its scenario needs to write it
    partitions: Ints
    ends: Ints  #: the record that ends the row of this one: of a delete itself, of what stays the number of records
    late_from: int  #: this record and those after it are sent when all before them is in the batch view
    file: Path  #: where `rows` are as Parquet

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    @property
    def places(self) -> Ints:
        """Of each record, how many were sent to its partition before it."""
        found = np.empty(len(self), np.int64)
        for p in np.unique(self.partitions):
            mine = np.flatnonzero(self.partitions == p)
            found[mine] = np.arange(len(mine))
        return found


class Scenario(ABC):
    """One kind of demo, with its description for people."""

    spec: TableSpec
    engine: EngineWord | None = None  #: of the table; None: what the settings say
    source: str  #: what the records are made of, as in "10 rows of TPC-H lineitem"
    judge: str  #: what the final state is compared with
    unit: str  #: what must be there at the end, as in "0 records are missing"
    freshness: str  #: which read ends the time that a record needs
    picture: str  #: name of the file
    checked: tuple[str, ...]  #: columns whose sums check every read
    numeric: tuple[str, ...]  #: columns whose sums are compared at the end

    @property
    def table(self) -> str:
        return self.spec.table

    @abstractmethod
    def make(self, folder: Path, rows: int) -> Log:
        """Make exactly *rows* records, the same ones each time. Raises: UsageError, GeneratorFailed."""

    @abstractmethod
    def records(self, rows: pa.Table) -> Sequence[Record]:
        """Some rows of a log as they are sent."""

    @abstractmethod
    def arrived(self, table: Table, where: str) -> pa.Table:
        """The coordinates of every record for which *where* holds and that can be read by now."""

    @abstractmethod
    def verify(self, table: Table, log: Log, truth: Truth) -> Verdict:
        """Compare what is there, when all is there, with what *log* must leave."""

    @abstractmethod
    def story(self, log: Log) -> Sequence[tuple[str, str]]:
        """What was sent: words in front, and sentences."""

    @abstractmethod
    def try_next(self, log: Log) -> Sequence[str]:
        """Commands that show more of this table."""
