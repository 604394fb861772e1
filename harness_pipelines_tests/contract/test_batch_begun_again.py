"""A batch view that is begun again has the field ids of the stream view, whatever has become of the columns."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from harness_pipelines.app.installation import Stores
from harness_pipelines.audit.repair.batch_view import BatchPlan, made
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.types import parse_type
from harness_pipelines.stages.table.evolve import evolve
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig

CHANGES = (
    ColumnChanges(add=(Column(name="more", type=parse_type("struct<a: long, b: list<string>>")),)),
    ColumnChanges(add=(Column(name="last", type=parse_type("long")),), rename=(("s", "said"),)),
    ColumnChanges(drop=("more",)),
    ColumnChanges(add=(Column(name="more", type=parse_type("string")),)),
)


@pytest.mark.parametrize("sample", [0, 0.01])
@pytest.mark.parametrize("count", range(len(CHANGES) + 1))
def test_columns_have_the_same_ids_in_both_views(real: RealRig, tmp_path: Path, count: int, sample: float):
    row = real.table(files=True, views="both", layout={"columns": ["id"], "sample": sample})
    with closing(_stores(real, tmp_path)) as stores:
        for changes in CHANGES[:count]:
            evolve(stores, row, changes)
            row = stores.ledger.table(row.name)

        begun = made(stores, row, BatchPlan(pointer=stores.ledger.pointer(row, "batch"), view=None))

        assert begun.view is not None
        batch = stores.lake.load(row, begun.view.metadata, view="batch").metadata
        stream = stores.lake.load(row, stores.ledger.pointer(row, "stream")).metadata
    columns = {field.field_id: field for field in stream.schema().fields}
    found = {field.field_id: field for field in batch.schema().fields}
    layers = found.keys() - columns.keys()
    assert {i: field for i, field in found.items() if i not in layers} == columns
    assert len(layers) == (1 if sample else 0)
    assert all(i > stream.last_column_id for i in layers), "an id of a dropped column would give its values"
    assert [field.field_id for field in batch.schema().fields] == [*columns, *layers]


def _stores(real: RealRig, folder: Path) -> Stores:
    warehouse = real.lake.warehouse  # type: ignore[attr-defined]
    return Stores(Settings(home=folder, dsn=real.dsn, warehouse=warehouse, catalog_name=CATALOG))
