"""What tables cost by day: work of the stages, bytes written again, and what is stored, with its price.

Prices are of a YAML file of the user, or examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import Field

from harness_pipelines.files import Unreadable, read_text
from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.wording import SpecError, SpecProblem
from harness_pipelines.spec.yaml_reader import Reader

GB = 10**9
FIRST, AGAIN = ("tier",), ("otree", "compact")  #: the stages that write a row for the first time, and those after
FILE_BYTES_MAX = 64 * 2**10
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Prices(SpecPart):
    """What things cost. The defaults are examples, about what a cloud asks for; nobody's bill goes by them."""

    currency: Annotated[str, Field(min_length=1, max_length=10, description="Shown beside the amounts.")] = "USD"
    worker_cpu_hour: Annotated[Price, Field(description="One hour of one core of a worker.")] = 0.05
    lake_gb_month: Annotated[Price, Field(description="10^9 bytes of the lake for 30 days.")] = 0.023
    postgres_gb_month: Annotated[Price, Field(description="10^9 bytes of Postgres's disk for 30 days.")] = 0.115


def load_prices(path: str | Path) -> Prices:
    """The prices in a YAML file; those that it does not name are the examples. Raises: SpecError."""
    reader = Reader()
    try:
        text = read_text(Path(path), FILE_BYTES_MAX)
    except Unreadable as error:
        raise SpecError(str(path), [SpecProblem(line=None, field="", message=f"{path} {error}")]) from None
    words = reader.read(text, str(path)) if text.strip() else {}
    if reader.problems:
        raise SpecError(str(path), reader.problems)
    return Prices.model_validate(words)


class Work(Protocol):
    """What one stage of a table did on one day."""

    @property
    def table(self) -> str: ...
    @property
    def day(self) -> date: ...
    @property
    def stage(self) -> str: ...
    @property
    def records(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def taken_bytes(self) -> int: ...
    @property
    def cpu_s(self) -> float: ...
    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCost:
    """One day (UTC) of one table."""

    day: date
    stages: Sequence[Work]
    prices: Prices

    @property
    def records(self) -> int:
        """That came in: those of ingest, or without a buffer those of tier."""
        by_stage = {one.stage: one.records for one in self.stages}
        return by_stage.get("ingest") or by_stage.get("tier", 0)

    @property
    def written(self) -> int:
        """Bytes of files with rows that the lake did not have."""
        return sum(one.bytes for one in self.stages if one.stage in FIRST)

    @property
    def written_again(self) -> int:
        """Bytes of files with rows that the lake had already: of merges, relayouts and compactions."""
        return sum(one.bytes for one in self.stages if one.stage in AGAIN)

    @property
    def cpu_s(self) -> float:
        return sum(one.cpu_s for one in self.stages)

    def to_json(self) -> dict[str, Any]:
        return {
            "day": self.day.isoformat(),
            "records": self.records,
            "taken_bytes": sum(one.taken_bytes for one in self.stages),
            "written_bytes": self.written,
            "written_again_bytes": self.written_again,
            "worker_cpu_s": round(self.cpu_s, 3),
            "worker_cpu_price": round(self.cpu_s / 3600 * self.prices.worker_cpu_hour, 6),
            "stages": [one.to_json() for one in self.stages],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCost:
    """The days of one table, the newest first, and what is stored now."""

    table: str
    days: Sequence[DayCost]
    lake_bytes: int | None  #: of the data files of the newest version; None: the lake does not answer
    buffer_bytes: int
    prices: Prices

    @property
    def stored_month(self) -> float | None:
        """What the stored bytes cost in 30 days."""
        if self.lake_bytes is None:
            return None
        lake = self.lake_bytes / GB * self.prices.lake_gb_month
        return lake + self.buffer_bytes / GB * self.prices.postgres_gb_month

    @property
    def again(self) -> float | None:
        """Bytes written again for each byte that was written, over all days; None: nothing was written."""
        written = sum(day.written for day in self.days)
        return sum(day.written_again for day in self.days) / written if written else None

    def to_json(self) -> dict[str, Any]:
        stored = self.stored_month
        return {
            "table": self.table,
            "days": [day.to_json() for day in self.days],
            "written_again_per_byte": None if self.again is None else round(self.again, 3),
            "lake_bytes": self.lake_bytes,
            "buffer_bytes": self.buffer_bytes,
            "stored_month_price": None if stored is None else round(stored, 6),
        }


def table_costs(
    tables: Iterable[str],
    work: Sequence[Work],
    *,
    lake: Mapping[str, int | None],
    buffers: Mapping[str, int],
    prices: Prices,
) -> list[TableCost]:
    """The costs of *tables*, in their order; *lake* and *buffers* are the bytes that are stored now."""
    by_table: dict[str, list[Work]] = {}
    for one in work:
        by_table.setdefault(one.table, []).append(one)
    return [
        TableCost(
            table=name,
            days=_days(by_table.get(name, []), prices),
            lake_bytes=lake.get(name),
            buffer_bytes=buffers.get(name, 0),
            prices=prices,
        )
        for name in tables
    ]


def _days(work: Sequence[Work], prices: Prices) -> list[DayCost]:
    by_day: dict[date, list[Work]] = {}
    for one in work:
        by_day.setdefault(one.day, []).append(one)
    return [DayCost(day=day, stages=stages, prices=prices) for day, stages in sorted(by_day.items(), reverse=True)]
