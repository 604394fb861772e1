"""The keyed demo: TPC-H orders whose records replace and delete each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness_pipelines.demo.changelog import DELETES, INSERTS, Changelog, OrderEvent, changelog, ends_of
from harness_pipelines.demo.final_state import replay, verify_state
from harness_pipelines.demo.scenario import MOVE_ROWS_MAX, PARTITIONS, REGIONS, Ints, Log, Record, Scenario
from harness_pipelines.demo.source import encode, generate
from harness_pipelines.demo.truth import Truth, whole_numbers
from harness_pipelines.demo.verify import Verdict
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.table import TableSpec

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table

TABLE = "demo.orders"
KEY, STATUS, PRICE = "o_orderkey", "o_orderstatus", "o_totalprice"
COLUMNS = {
    KEY: "long",
    "o_custkey": "long",
    STATUS: "string",
    PRICE: "decimal(15,2)",
    "o_orderdate": "date",
    "o_orderpriority": "string",
    "o_clerk": "string",
    "o_shippriority": "int",
    "o_comment": "string",
}
OP, EVENT = "op", "event"
LATE_SHARE = 0.1  #: of the records are sent when all others are in the batch view
#: Values of the field `op`, as capture tools write them: create, update, delete.
LETTERS = {OrderEvent.INSERTED: "c", OrderEvent.INSERTED_AGAIN: "c", OrderEvent.DELETED: "d"}
HASH = np.uint64(0x9E3779B97F4A7C15)  #: Knuth's: 2^64 divided by the golden ratio


class Orders(Scenario):
    """Orders that are inserted, change, and are deleted by a value that says so or by a tombstone.

    *words* of the table's spec stand in for those of the demo.
    """

    source = "changes of TPC-H orders"
    judge = "the replayed log"
    unit = "rows"
    freshness = "a read of the changes that returns it"
    picture = "orders.png"
    checked = (KEY, PRICE)
    numeric = tuple(name for name, kind in COLUMNS.items() if kind in {"long", "int"} or kind.startswith("decimal"))

    def __init__(self, **words: Any) -> None:
        self.spec = _spec(words)

    def make(self, folder: Path, rows: int) -> Log:
        lives = changelog(rows)
        path = generate(folder, int(lives.orders.max()) + 1, table="orders", schema=arrow_schema(self.spec.columns))
        changes = folder / "changes.parquet"
        log = changed(pq.read_table(path), lives, file=changes)
        pq.write_table(log.rows, changes)
        return log

    def records(self, rows: pa.Table) -> Sequence[Record]:
        keys = [str(key).encode() for key in rows.column(KEY).to_pylist()]
        whole = encode(rows.select([*COLUMNS, OP]))
        brief = encode(rows.select([KEY, OP]))
        events = rows.column(EVENT).to_pylist()
        values: dict[str, Sequence[bytes | None]] = {
            OrderEvent.BURIED.name: [None] * len(keys),
            OrderEvent.DELETED.name: brief,
        }
        return [(key, values.get(event, whole)[i]) for i, (key, event) in enumerate(zip(keys, events, strict=True))]

    def arrived(self, table: Table, where: str) -> pa.Table:
        return table.changes(1, columns=[], where=where)

    def verify(self, table: Table, log: Log, truth: Truth) -> Verdict:
        deletes = pc.is_in(log.rows.column(EVENT), value_set=pa.array([event.name for event in DELETES]))
        live = replay(log.rows.column(KEY).to_pylist(), deletes.to_pylist())
        expected = log.rows.select(list(COLUMNS)).take(pa.array(live, pa.int64()))
        for name, values in truth.coordinates(log, live).items():
            expected = expected.append_column(name, pa.array(values))
        return verify_state(table, expected, key=KEY, numeric=self.numeric, judge=self.judge)

    def story(self, log: Log) -> Sequence[tuple[str, str]]:
        told = {OrderEvent[one["values"]]: one["counts"] for one in log.rows.column(EVENT).value_counts().to_pylist()}
        inserts = sum(told.get(event, 0) for event in INSERTS)
        deleted, buried = told.get(OrderEvent.DELETED, 0), told.get(OrderEvent.BURIED, 0)
        updates = len(log) - inserts - deleted - buried
        keys, versions = np.unique(_keys(log), return_counts=True)
        replaced = log.ends[: log.late_from]
        late = int(((replaced >= log.late_from) & (replaced < len(log))).sum())
        live = int((log.ends == len(log)).sum())
        again = told.get(OrderEvent.INSERTED_AGAIN, 0)
        changes = f"{inserts:,} inserts ({again:,} of them again), {updates:,} updates, "
        return (
            ("changes", f"{changes}{deleted + buried:,} deletes ({buried:,} of them tombstones)"),
            (
                "keys",
                f"{len(keys):,} orders, {live:,} of them live at the end; one has {int(versions.max()):,} records",
            ),
            (
                "late",
                f"{len(log) - log.late_from:,} records came when all before them was in the batch view: "
                f"{late:,} of its rows were replaced or deleted",
            ),
        )

    def try_next(self, log: Log) -> Sequence[str]:
        table, hot = self.table, _hottest(log)
        return (
            f"status {table}",
            f"get {table} {hot}              # the newest row of a key",
            f'changes {table} --from 2 --pre-images --columns {STATUS},{PRICE} --where "{KEY} = {hot}"  # its history',
            f"read {table} --at 2 --where \"{STATUS} = 'P'\" --limit 5  # the table as it was",
            f'sql "SELECT {STATUS}, count(*), sum({PRICE}) FROM {table} GROUP BY {STATUS}"',
            f"audit {table}",
        )


def changed(base: pa.Table, lives: Changelog, *, file: Path) -> Log:
    """The log of *lives*, in which order i is row i of *base*: all records of a key go to one partition."""
    rows = base.take(pa.array(lives.orders))
    cents = pa.array(whole_numbers(rows.column(PRICE)) + lives.corrections)
    prices = pc.multiply(cents.cast(pa.decimal128(19, 0)), pa.scalar("0.01").cast(pa.decimal128(3, 2)))
    letters, names = (
        np.array(words) for words in zip(*((LETTERS.get(e, "u"), e.name) for e in OrderEvent), strict=True)
    )
    rows = pa.table(
        {
            **dict(zip(rows.column_names, rows.columns, strict=True)),
            PRICE: prices.cast(rows.schema.field(PRICE).type),
            STATUS: lives.statuses,
            OP: letters[lives.events],
            EVENT: names[lives.events],
        }
    )
    keys = whole_numbers(rows.column(KEY))
    return Log(
        rows=rows,
        partitions=partition_of(keys),
        ends=ends_of(keys, lives.deletes),
        late_from=len(lives) - int(len(lives) * LATE_SHARE),
        file=file,
    )


def partition_of(keys: Ints) -> Ints:
    """Where the records of each key go."""
    return ((keys.astype(np.uint64) * HASH >> np.uint64(32)) % np.uint64(PARTITIONS)).astype(np.int64)


def _keys(log: Log) -> Ints:
    return whole_numbers(log.rows.column(KEY))


def _hottest(log: Log) -> int:
    """The key with most records, of those that live at the end if there are any."""
    all_keys = _keys(log)
    live = np.isin(all_keys, all_keys[log.ends == len(log)])
    keys, versions = np.unique(all_keys[live] if live.any() else all_keys, return_counts=True)
    return int(keys[np.argmax(versions)])


def _spec(words: Mapping[str, Any]) -> TableSpec:
    """The table moves often, so that there is something to see."""
    return TableSpec.model_validate(
        {
            "table": TABLE,
            "columns": {name: {"type": kind, "required": True} for name, kind in COLUMNS.items()},
            "key": [KEY],
            "delete": {"field": OP, "values": ["d"]},
            "views": "both",
            "layout": {"columns": ["o_orderdate", "o_custkey", PRICE], "regions": REGIONS},
            "tier": {"max_rows": MOVE_ROWS_MAX, "max_age": "10s"},
            "freshness": {"lake": "10s"},
            "mode": "external_worker",
            **words,
        }
    )
