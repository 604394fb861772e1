"""Figures of a table whose rows lie in lake and buffer."""

from __future__ import annotations

from harness_pipelines_tests.faults.conftest import MakeRig


def test_a_table_is_counted_described_and_shown(make_rig: MakeRig):
    rig = make_rig(partitions=2)
    rig.produce(40)
    rig.ingest()
    rig.tier()
    rig.produce(20)
    rig.ingest()
    total, rows = rig.truth.total(), rig.table.read()

    assert rig.table.count() == total == rows.num_rows
    assert rig.table.count("n < 10") == sum(n < 10 for n in rows.column("n").to_pylist())
    assert rig.table.head(3).num_rows == 3
    assert rig.table.schema.equals(rows.schema)
    assert rig.table.columns == tuple(rows.schema.names)
    figures = {one["column"]: one for one in rig.table.describe().to_pylist()}
    ids = rows.column("id").to_pylist()
    assert (figures["id"]["rows"], figures["id"]["nulls"]) == (total, 0)
    assert (figures["id"]["least"], figures["id"]["greatest"]) == (str(min(ids)), str(max(ids)))
    assert rig.name in repr(rig.table)
