"""Random schema changes between old and new producers, moves, merges and relayouts: every version is what it was.

The reference is a list in memory: of each record the values by column, whatever that was called when, as the schema
that was in force decodes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pytest

from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import OTREE, TableRig

COMPACT = frozenset({Stage.COMPACT})
PARTITIONS = 2
KEYS = 8  #: of each partition of a keyed table
WIDER = {"int": "long", "float": "double", "decimal(6,2)": "decimal(24,2)"}
NEW_TYPES = ("int", "float", "decimal(6,2)", "string", "list<int>")
NEW_INSIDE = ("int", "decimal(6,2)", "string", "list<int>")
ITEMS = 4  #: the column whose structs change


@dataclass(slots=True)
class Known:
    """A column of the reference."""

    name: str
    type: str
    names: list[str]  #: that it had, the newest first
    required: bool = False
    #: Of one with structs: by number of the field its name and its type.
    inside: dict[int, tuple[str, str]] | None = None
    around: str = "struct"  #: what the structs are in: list, map or nothing


@dataclass(slots=True)
class Record:
    """One record: what its producer wrote, and once it is decoded the values by column."""

    offset: tuple[int, int]
    id: int
    fields: dict[str, Any] | None  #: None: it deletes its key
    values: dict[int, Any] | None = None


@dataclass(slots=True)
class Reference:
    """What the table is, by number of the column."""

    columns: dict[int, Known]
    around: str  #: the structs of `ITEMS`
    order: list[int]
    records: list[Record] = field(default_factory=list)
    #: Schema version -> names then, in order, and those of the fields inside.
    schemas: dict[int, dict[int, tuple[str, dict[int, str] | None]]] = field(default_factory=dict)
    made: int = 20

    def decode(self) -> None:
        """All that was produced so far is decoded with the schema of now."""
        for record in self.records:
            if record.values is None:
                fields = record.fields or {}
                record.values = {
                    number: decoded(column, next((fields[n] for n in column.names if n in fields), None))
                    for number, column in self.columns.items()
                }

    def note(self, schema_version: int) -> None:
        self.schemas[schema_version] = {n: shape_of(self.columns[n]) for n in self.order}

    def names(self, schema_version: int) -> list[str]:
        return [name for name, _ in self.schemas[schema_version].values()]

    def rows(self, schema_version: int, below: Callable[[int], int]) -> list[dict[str, Any]]:
        """The rows of a read in one schema: of each id the newest."""
        shape = self.schemas[schema_version]
        found: dict[int, dict[str, Any]] = {}
        for record in sorted(self.records, key=lambda r: r.offset):  # one key, one partition: the newest is the last
            if record.values is None or record.offset[1] >= below(record.offset[0]):
                continue
            if record.fields is None:
                found.pop(record.id, None)
            else:
                found[record.id] = {
                    name: shown(record.values.get(number), inside, self.around)
                    for number, (name, inside) in shape.items()
                }
        return list(found.values())


def shape_of(column: Known) -> tuple[str, dict[int, str] | None]:
    return column.name, None if column.inside is None else {n: name for n, (name, _) in column.inside.items()}


def each(around: str, value: Any, change: Callable[[dict[Any, Any]], dict[Any, Any]]) -> Any:
    """*value* with its structs changed; a map is a list of pairs then, as Arrow has it."""
    if value is None:
        return None
    if around == "list":
        return [each("struct", one, change) for one in value]
    if around == "map":
        return [
            (key, each("struct", one, change)) for key, one in (value.items() if isinstance(value, dict) else value)
        ]
    return change(value)


def decoded(column: Known, value: Any) -> Any:
    """*value* of a record; fields of structs by their numbers."""
    if column.inside is None or value is None:
        return value
    fields = column.inside.items()
    return each(column.around, value, lambda one: {n: one.get(name) for n, (name, _) in fields})


def shown(value: Any, inside: dict[int, str] | None, around: str) -> Any:
    """A decoded *value* with the fields that a schema has."""
    return (
        value if inside is None else each(around, value, lambda one: {name: one.get(n) for n, name in inside.items()})
    )


def value(type_: str, number: int, rng: random.Random) -> Any:
    """A value that every type the column can be widened from holds."""
    if rng.random() < 0.15:
        return None
    kind = type_.partition("(")[0]
    if kind == "decimal":
        return f"{number % 9000}.{number % 90 + 10}"
    return {"string": f"text {number}", "list<int>": [number, None]}.get(
        type_, float(number % 1000) / 4 if kind in ("float", "double") else number
    )


def plain(one: Any) -> Any:
    """Decimals as the text that the records have."""
    if isinstance(one, dict):
        return {name: plain(part) for name, part in one.items()}
    if isinstance(one, list | tuple):
        return [plain(part) for part in one]
    return str(one) if isinstance(one, Decimal) else one


class Run:
    """One table, driven at random."""

    def __init__(self, rig: TableRig, rng: random.Random, around: str) -> None:
        self.rig, self.rng, self.keyed = rig, rng, bool(rig.table.spec.key)
        inside = {11: ("a", "int"), 12: ("d", "decimal(6,2)")}
        self.ref = Reference(
            around=around,
            columns={
                1: Known("id", "long", ["id"], required=True),
                2: Known("n", "int", ["n"]),
                3: Known("s", "string", ["s"]),
                ITEMS: Known("items", "", ["items"], inside=inside, around=around),
            },
            order=[1, 2, 3, ITEMS],
        )
        self.ref.note(1)
        self.id = 0
        self.age_s = 61  #: a setting
        self.file = self._with_age(self.age_s)  #: what a person has at hand, perhaps from before a change
        self.rig.harness.apply(self.file)

    def produce(self) -> None:
        """Records of producers that know any of the names that the columns had, or lack fields."""
        for partition in range(PARTITIONS):
            first = len(self.rig.kafka.acked(self.rig.topic)[partition])
            for number in range(self.rng.randint(1, 5)):
                self.id += 1
                key = self.rng.randrange(partition, 2 * KEYS, PARTITIONS) if self.keyed else self.id
                fields = None if self.keyed and self.rng.random() < 0.2 else self._fields(key)
                value = None if fields is None else orjson.dumps(fields)
                self.rig.kafka.produce(self.rig.topic, partition, [value], key=orjson.dumps({"id": key}))
                self.ref.records.append(Record((partition, first + number), key, fields))

    def _fields(self, key: int) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": key}
        for number, column in self.ref.columns.items():
            if number != 1 and self.rng.random() < 0.9:
                fields[self.rng.choice(column.names)] = self._value(column)
        return fields

    def _value(self, column: Known) -> Any:
        if column.inside is None:
            return value(column.type, self.id, self.rng)
        if self.rng.random() < 0.15:
            return None
        if column.around == "struct":
            return self._struct(column.inside)
        found = [self._struct(column.inside) for _ in range(self.rng.randrange(3))]
        return found if column.around == "list" else {f"k{n}": one for n, one in enumerate(found)}

    def _struct(self, inside: dict[int, tuple[str, str]]) -> dict[str, Any] | None:
        if self.rng.random() < 0.15:
            return None
        fields = {name: value(type_, self.id, self.rng) for name, type_ in inside.values() if self.rng.random() < 0.9}
        return {"gone": 1, **fields}

    def ingest(self) -> None:
        self.rig.ingest()
        self.ref.decode()

    def tier(self) -> None:
        self.ingest()
        self.rig.tier()

    def merge(self) -> None:
        self.rig.worker(OTREE, until_idle=True).run()

    def relayout(self) -> None:
        """Every file of the batch view is rewritten."""
        self.rig.table = self.rig.harness.table(self.rig.name)
        if self.rig.stores.ledger.head(self.rig.table.row).layout is not None:
            self.rig.relayout()

    def compact(self) -> None:
        self.rig.worker(COMPACT, until_idle=True).run()

    def evolve(self) -> None:
        ref, rng = self.ref, self.rng
        free = [number for number in ref.order if number != 1]
        what = rng.choice(["add", "add", "drop", "rename", "rename", "widen", "order", "inside", "inside", "inside"])
        if what == "inside":
            changes = self._inside()
        elif what == "drop" and (flat := [n for n in free if n != ITEMS]):
            number = rng.choice(flat)
            changes = ColumnChanges(drop=(ref.columns.pop(number).name,))
            ref.order.remove(number)
        elif what == "rename" and free:
            column = ref.columns[rng.choice(free)]
            new = f"c{ref.made}"
            changes = ColumnChanges(rename=((column.name, new),))
            column.name, column.names, ref.made = new, [new, *column.names], ref.made + 1
        elif what == "widen" and (wide := [n for n in free if ref.columns[n].type in WIDER]):
            column = ref.columns[rng.choice(wide)]
            column.type = WIDER[column.type]
            changes = ColumnChanges(widen=((column.name, parse_type(column.type)),))
        elif what == "order":
            rng.shuffle(ref.order)
            changes = ColumnChanges(order=tuple(ref.columns[n].name for n in ref.order))
        else:
            number, type_ = ref.made, rng.choice(NEW_TYPES)
            changes = ColumnChanges(add=(Column(name=f"c{number}", type=parse_type(type_)),))
            ref.columns[number] = Known(f"c{number}", type_, [f"c{number}"])
            ref.order.append(number)
            ref.made += 1
        published = self.rig.harness.table(self.rig.name).evolve(changes)
        ref.note(published.schema_version)

    def _with_age(self, age_s: int) -> TableSpec:
        """The spec of now with that setting."""
        words = dump_spec(self.rig.harness.table(self.rig.name).spec)
        return TableSpec.model_validate({**words, "tier": {"max_age": f"{age_s}s"}})

    def apply(self) -> None:
        """A file is applied that may be from before a change of columns: then it is refused, and nothing is changed."""
        fits = self.file.columns == self.rig.harness.table(self.rig.name).spec.columns
        self._apply(self.file, refused=not fits)
        if self.rng.random() < 0.5:
            self.file = self._with_age(self.age_s + 1)

    def apply_over_a_change(self) -> None:
        """The columns are changed after an apply has read them: it is refused."""
        update = PostgresLedger.update_spec

        def late(*arguments: Any, **words: Any) -> TableRow:
            self.evolve()
            return update(*arguments, **words)

        with patch.object(PostgresLedger, "update_spec", late):
            self._apply(self._with_age(self.age_s + 1), refused=True)

    def change_over_an_apply(self) -> None:
        """A setting is applied after a change of columns was planned: both are so in the end."""
        faults.arm("evolve.before_lock", lambda: self._apply(self._with_age(self.age_s + 1), refused=False))
        self.evolve()
        faults.disarm()
        self._has_both()

    def _apply(self, spec: TableSpec, *, refused: bool) -> None:
        try:
            self.rig.harness.apply(spec)
        except HarnessError as error:
            assert refused, error
        else:
            assert not refused
            self.age_s = int(spec.tier.max_age)
        self._has_both()

    def _has_both(self) -> None:
        """The ledger's spec has the setting that was applied last and the columns that were published last."""
        table = self.rig.harness.table(self.rig.name)
        assert table.spec.tier.max_age == self.age_s
        assert [one.name for one in table.spec.columns] == self.ref.names(table.row.schema_version)

    def _inside(self) -> ColumnChanges:
        """A change of the structs' fields."""
        ref, rng, column = self.ref, self.rng, self.ref.columns[ITEMS]
        inside = column.inside
        assert inside is not None
        at = column.name + {"list": ".element", "map": ".value", "struct": ""}[column.around]
        number = rng.choice([*inside])
        name, type_ = inside[number]
        what = rng.choice(["add", "add", "drop", "widen", "order"])
        if what == "drop" and len(inside) > 1:
            del inside[number]
            return ColumnChanges(drop=(f"{at}.{name}",))
        if what == "widen" and type_ in WIDER:
            inside[number] = (name, WIDER[type_])
            return ColumnChanges(widen=((f"{at}.{name}", parse_type(WIDER[type_])),))
        if what == "order":
            column.inside = {n: inside[n] for n in rng.sample([*inside], len(inside))}
            return ColumnChanges(order=tuple(f"{at}.{one}" for one, _ in column.inside.values()))
        added = (f"c{ref.made}", rng.choice(NEW_INSIDE))
        inside[ref.made], ref.made = added, ref.made + 1
        return ColumnChanges(add=(Column(name=f"{at}.{added[0]}", type=parse_type(added[1])),))

    def check(self, *, spark: bool) -> None:
        """The newest read, and every version that is kept, in the columns that it had."""
        table = self.rig.harness.table(self.rig.name)
        positions = {p.partition: p.bounds.buffer_hi for p in table.positions()}
        self.same(table.row.schema_version, positions.__getitem__, at=None, spark=spark)
        for version in table.versions()[:-1]:
            below = {p: bounds.buffer_hi for p, bounds in version.bounds.items()}
            self.same(
                version.schema_version, below.__getitem__, at=version.version, spark=spark and version.version % 3 == 0
            )

    def same(self, schema_version: int, below: Callable[[int], int], *, at: int | None, spark: bool) -> None:
        table = self.rig.harness.table(self.rig.name)
        expected = self.ref.rows(schema_version, below)
        found: pa.Table = table.read(at=at)
        assert found.column_names == self.ref.names(schema_version), at
        by_id = {row["id"]: plain(row) for row in found.to_pylist()}
        assert by_id == {row["id"]: plain(row) for row in expected}, at
        assert found.num_rows == len(expected), at
        if spark:
            frame = table.to_spark(self.rig.stores.spark(), at=at).toArrow()
            assert frame.schema.names == found.schema.names
            numbers = [f.name for f in found.schema if pa.types.is_primitive(f.type)]
            assert [frame.schema.field(n).type for n in numbers] == [found.schema.field(n).type for n in numbers], at
            assert {row["id"]: plain(row) for row in frame.to_pylist()} == by_id, at


KINDS: dict[str, dict[str, Any]] = {
    "both": {"views": "both"},
    "keyed": {"views": "both", "key": ["id"]},
    "stream": {"views": "stream"},
    "batch": {"views": "batch"},
}


@pytest.mark.parametrize("kind", [k if k == "keyed" else pytest.param(k, marks=pytest.mark.long) for k in KINDS])
@pytest.mark.parametrize(("seed", "count"), [(1, 20), *(pytest.param(n, 40, marks=pytest.mark.long) for n in (1, 2))])
def test_every_version_reads_in_its_own_columns_whatever_changed_since(
    make_rig: MakeRig, kind: str, seed: int, count: int
):
    rng = random.Random(f"{kind} {seed}")
    columns = {"id": {"type": "long", "required": True}, "n": "int", "s": "string"}
    struct = "struct<a: int, d: decimal(6,2)>"
    around = {"keyed": "map", "batch": "struct"}.get(kind, "list")
    columns["items"] = {"list": f"list<{struct}>", "map": f"map<string, {struct}>"}.get(around, struct)
    rig = make_rig(columns=columns, layout={"columns": ["id"]}, partitions=PARTITIONS, **KINDS[kind])
    run, views = Run(rig, rng, around), rig.table.spec.views
    steps = [run.produce, run.produce, run.ingest, run.tier, run.evolve, run.evolve]
    steps += [run.apply, run.apply_over_a_change, run.change_over_an_apply]
    steps += [run.merge, run.compact, run.relayout] if views == "both" else [run.compact] if views == "stream" else []
    for number in range(count):
        step = rng.choice(steps)
        step()
        if number % 4 == 3:
            run.check(spark=False)
    run.ingest()
    run.check(spark=True)
    run.tier()
    if views == "both":
        run.merge()
    run.check(spark=True)
    assert audit_table(rig.stores, rig.harness.table(rig.name).row, full=True).ok
    assert fsck(rig.stores, [rig.name]).ok
